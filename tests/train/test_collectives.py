"""Which tensors pass through the CPU on their way to other workers, and which GPU a worker computes on."""

from types import SimpleNamespace

import pytest
import torch

from planner.errors import TrainingFailed
from planner.train import journal, world
from planner.train.collectives import needs_staging
from planner.train.exact.gradient_sums import FixedPointSums, _ModuleSum


@pytest.mark.parametrize(
    ("device", "backends", "expected"),
    [
        ("cpu", "cpu:gloo,cuda:gloo", False),
        ("cuda", "cpu:gloo,cuda:gloo", True),
        ("cuda", "cpu:gloo,cuda:nccl", False),
        ("cuda", "cuda:nccl", False),
        ("cuda", "cpu:gloo,cuda:gloo,xpu:gloo", True),
        ("xpu", "cpu:gloo,cuda:nccl", False),
    ],
)
def test_only_what_gloo_alone_would_carry_is_staged(device, backends, expected):
    """The CPU's own tensors never are; a group without a backend for the device fails by itself."""
    assert needs_staging(device, backends) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", []), ("cuda", []), ("cuda:3", [torch.device("cuda:3")])],
)
def test_a_worker_computes_on_the_gpu_it_was_given(monkeypatch, device, expected):
    """FSDP uses the current device, which is the node's first GPU until it is set."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    world.make_current(torch.device(device))
    assert chosen == expected


def test_workers_may_share_a_gpu_if_they_are_told_to(monkeypatch):
    """A worker with its own GPU keeps it, and no worker falls back to the CPU silently."""
    cpu, own, shared = torch.device("cpu"), torch.device("cuda:3"), torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [world._shared_gpu(device) for device in (cpu, own)] == [cpu, own]
    monkeypatch.setenv(world.SHARED_GPU, "1")
    assert [world._shared_gpu(device) for device in (cpu, own)] == [shared, own]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingFailed, match=r"torch sees no GPU here\. Unset it"):
        world._shared_gpu(cpu)


def test_a_commit_can_be_made_where_ray_is_not_installed(monkeypatch):
    """Its versions are those of the installed packages."""

    def version(name):
        raise journal.metadata.PackageNotFoundError(name)

    assert "ray" in journal._versions()
    monkeypatch.setattr(journal.metadata, "version", version)
    assert journal._versions().keys() == {"planner", "python", "torch"}


def test_magnitudes_on_two_devices_are_put_together(monkeypatch):
    """A module whose parameters are all frozen gets no gradient: its magnitude stays where it was made, on the CPU."""
    from planner.train.exact import gradient_sums

    seen = []
    monkeypatch.setattr(gradient_sums.torch, "stack", lambda tensors: seen.extend(tensors) or torch.zeros(len(tensors)))
    monkeypatch.setattr(gradient_sums.dist, "all_reduce", lambda *_, **__: None)
    sums = FixedPointSums(
        torch.nn.Linear(1, 1), SimpleNamespace(device=torch.device("meta"), object_group=None), 1, "sharded"
    )
    sums._modules = [_ModuleSum("sharded"), _ModuleSum("sharded")]
    sums._modules[1].largest = torch.zeros((), device="meta")
    sums._largest()
    assert [tensor.device.type for tensor in seen] == ["meta", "meta"]
