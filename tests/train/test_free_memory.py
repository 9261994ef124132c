"""How much memory a worker may take for whole sums of gradients, with doubles of CUDA."""

from types import SimpleNamespace

import pytest
import torch

from planner.train import lifecycle

MIB = 2**20


def world(device, *others):
    """This worker, whose host is this one, and what the others say."""
    return SimpleNamespace(device=torch.device(device), gather=lambda mine: [mine, *others])


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """100 MiB of the host are available. The GPU has 60 free, and 8 of this worker's 20 hold no tensor."""
    monkeypatch.setattr(lifecycle.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(lifecycle, "available_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (60 * MIB, 80 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 20 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: 12 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="a"))


@pytest.mark.parametrize(
    ("found", "mib"),
    [
        pytest.param(world("cuda:0"), 68, id="alone: what is free, and what torch has kept"),
        pytest.param(world("cuda:0", ("here", "a", 60 * MIB, 0)), 30, id="two on one GPU share what is free"),
        pytest.param(world("cuda:0", ("here", "b", 90 * MIB, 0)), 68, id="another GPU of the host"),
        pytest.param(world("cuda:0", ("there", "a", 40 * MIB, 0)), 40, id="the fuller GPU counts"),
        pytest.param(world("cpu"), 100, id="a CPU"),
        pytest.param(world("cpu", ("here", "", 90 * MIB, 0)), 45, id="two on one host"),
    ],
)
def test_the_least_that_any_worker_has(found, mib):
    """Each of those that share a device gets an equal part of what is free there."""
    assert lifecycle._free_bytes(found) == mib * MIB
