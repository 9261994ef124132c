"""Copies to a GPU and back. Without one here, torch's CPU device stands in for it."""

import pytest

from planner.probe import devices


def test_without_a_driver_torch_is_not_asked(monkeypatch):
    """It would take seconds to import."""
    monkeypatch.setattr(devices, "_DRIVERS", ())
    assert devices.copies() == devices.Copies(missing="no GPU")


def test_a_driver_alone_is_no_gpu(monkeypatch):
    """As on a machine whose torch was built for CPUs."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.copies(is_expected=True) == devices.Copies(missing="no GPU that torch can use")


def without_gpu(make):
    """A function that makes a tensor in pageable memory of the CPU, whatever it is asked for."""
    return lambda *size, **named: make(*size, dtype=named["dtype"])


@pytest.fixture
def stand_in(monkeypatch):
    """torch as if it had a GPU."""
    import torch

    for name in ("ones", "zeros"):
        monkeypatch.setattr(torch, name, without_gpu(getattr(torch, name)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "stand-in")
    monkeypatch.setattr(devices, "_MOST_BYTES", 2**20)
    monkeypatch.setattr(devices, "_PACE", devices.Pace(most_bytes=2**20, first_bytes=2**20))
    return torch


@pytest.mark.usefixtures("stand_in")
def test_both_directions_and_both_kinds_of_memory_are_measured():
    """Pinned and pageable, five repeats each."""
    found = devices.copies(is_expected=True)
    assert (found.device, found.missing) == ("stand-in", "")
    kinds = ["host to GPU, pinned", "GPU to host, pinned", "host to GPU, pageable", "GPU to host, pageable"]
    assert list(found.moves) == kinds
    assert all(len(moves) == 5 and moves[0].num_bytes == 2**20 for moves in found.moves.values())


def test_a_gpu_that_is_full_says_so(stand_in, monkeypatch):
    """Somebody else trains there."""

    def full(*_size, **_named):
        raise stand_in.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(stand_in, "zeros", full)
    assert devices.copies(is_expected=True).missing.startswith("a GPU without")


def test_a_gpu_that_cannot_be_used_says_why(stand_in, monkeypatch):
    """Another process has it for itself. The rest of the probe goes on."""

    def busy(*_size, **_named):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with DSA")

    monkeypatch.setattr(stand_in, "zeros", busy)
    assert devices.copies(is_expected=True).missing == (
        "a GPU that torch cannot use: CUDA error: all CUDA-capable devices are busy or unavailable"
    )
