"""Fixed-point sums and their norm where a tensor is worked on in several pieces: the very same integers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.train.exact import gradient_sums
from planner.train.exact.gradient_sums import _ModuleSum
from planner.train.exact.norm import _PIECE_ON_CPU, exact_norm

SIZES = [1, _PIECE_ON_CPU - 1, _PIECE_ON_CPU, _PIECE_ON_CPU + 1, 3 * _PIECE_ON_CPU + 17]


@pytest.fixture
def alone(monkeypatch):
    """A world of one, without a process group."""
    monkeypatch.setattr(gradient_sums.dist, "all_reduce", lambda *_, **__: None)
    return SimpleNamespace(object_group=None)


def gradients(size, count=3):
    generator = torch.Generator().manual_seed(size)
    spread = torch.exp(3 * torch.randn(size, generator=generator))
    return [torch.randn(size, generator=generator) * spread for _ in range(count)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exponent", [-20, 0, 40])
def test_a_sum_in_pieces_is_the_sum_of_rounded_quanta(size, exponent):
    """Against numpy in float64, where g * 2^e is exact; the hand-out rounds by way of float64."""
    parts = gradients(size)
    module_sum = _ModuleSum("sharded")
    module_sum.begin(exponent, is_plain=False)
    for number, part in enumerate(parts, 1):
        module_sum.is_last = number == len(parts)
        output = part.clone()
        module_sum.on_one_worker(output)
        assert module_sum.is_last or not output.any()
    quanta = sum(np.rint(part.numpy().astype(np.float64) * 2.0**exponent).astype(np.int64) for part in parts)
    assert np.array_equal(output.numpy(), (quanta.astype(np.float64) * 2.0**-exponent).astype(np.float32))
    assert float(module_sum.largest) == max(float(part.abs().max()) for part in parts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_missed(value):
    """Whatever piece it stands in, in whatever round."""
    for place in (0, _PIECE_ON_CPU, -1):
        parts = gradients(2 * _PIECE_ON_CPU)
        parts[1][place] = value
        module_sum = _ModuleSum("sharded")
        module_sum.begin(0, is_plain=False)
        for part in parts:
            module_sum.on_one_worker(part)
        assert not math.isfinite(module_sum.largest)


def test_the_norm_does_not_see_how_elements_are_cut(alone):
    """The same bits for one shard, for many, for empty ones between them; and close to float64's own norm."""
    whole = gradients(3 * _PIECE_ON_CPU + 17, 1)[0]
    norm = exact_norm(alone, [whole])
    for cuts in (2, 3, 7, 100):
        shards = [torch.empty(0), *whole.tensor_split(cuts), torch.empty(0, 3)]
        assert exact_norm(alone, shards) == norm
    assert norm == pytest.approx(float(whole.double().norm()), rel=1e-12)
    assert exact_norm(alone, []) == exact_norm(alone, [torch.zeros(5), torch.empty(0)]) == 0
    assert math.isnan(exact_norm(alone, [whole, torch.tensor([math.nan])]))
    assert exact_norm(alone, [whole, torch.tensor([-math.inf])]) == math.inf


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU, and notes the streams that it is recorded on."""

    is_cuda = True
    recorded: list[str]

    def record_stream(self, stream):
        self.recorded.append(stream)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_single_workers_gpu_memory_is_not_freed_before_its_hook_has_run(monkeypatch, is_plain):
    """FSDP calls the hook on another stream than the one it took the memory from, with plain sums, too."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: "the hook's")
    output = torch.ones(3).as_subclass(OnGpu)
    output.recorded = []
    module_sum = _ModuleSum("sharded")
    module_sum.begin(0, is_plain=is_plain)
    module_sum.on_one_worker(output)
    assert output.recorded == ["the hook's"]


class Copies(TorchDispatchMode):
    """Notes copies from the CPU to another device, for which Python waits."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "copy" in str(func) and args[0].device != result.device:
            self.found.append(func)
        return result


def test_no_round_waits_for_the_device():
    """The meta device stands in for a GPU: nothing may come from the CPU."""
    module_sum = _ModuleSum("sharded")
    module_sum.begin(0, is_plain=False)
    with Copies() as copies:
        for is_last in (False, True):
            module_sum.is_last = is_last
            module_sum.on_one_worker(torch.empty(8, device="meta"))
    assert copies.found == []
    assert module_sum.largest.device.type == "meta"
