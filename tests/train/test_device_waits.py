"""What a step computes on its device without a copy from the CPU, for which the step would wait.

The `meta` device stands for a GPU. Operations between it and the CPU are seen as they are dispatched.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.train.exact.gradient_sums import _ModuleSum
from planner.train.optimize import clip_gradients


class CopiesFromTheCpu(TorchDispatchMode):
    """Notes each operation that makes a tensor on `meta` from tensors on the CPU, and each that has both."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        flat = torch.utils._pytree.tree_leaves((args, kwargs, found))
        if {tensor.device.type for tensor in flat if isinstance(tensor, torch.Tensor)} == {"cpu", "meta"}:
            self.names.append(func.__name__)
        return found


@pytest.fixture
def copies():
    """What is noted in the test."""
    with CopiesFromTheCpu() as mode:
        yield mode.names


def test_copies_are_seen(copies):
    """Or the tests below could not fail."""
    torch.zeros(()).to("meta")
    assert copies == ["_to_copy.default"]


def test_clipping_copies_no_norm(copies, monkeypatch):
    """The norm is a number in Python. It is filled in where torch multiplies gradients by its inverse."""
    given = []
    # torch's function takes no `meta` tensors.
    monkeypatch.setattr(
        torch.nn.utils, "clip_grads_with_norm_", lambda _parameters, _most, norm, **_: given.append(norm)
    )
    model = nn.Linear(3, 2, device="meta")
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    clip_gradients(model, 5.0, 1.0)
    assert [(norm.device.type, norm.dtype) for norm in given] == [("meta", torch.float32)]
    assert copies == []


def test_a_modules_largest_magnitude_begins_on_its_device(copies):
    """In each of its rounds. A model has one such number for each block."""
    module_sum = _ModuleSum("sharded")
    for exponent in (0, 3):
        module_sum.begin(exponent, is_plain=False)
        for _ in range(2):
            module_sum._note(torch.empty(4, device="meta"))
        assert module_sum.largest.device.type == "meta"
    assert copies == []
