"""What a forward pass sends to a GPU, with a double of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from planner.data.samples import NO_LOSS
from planner.train.log_probs import log_prob_sum
from planner.train.reference.cache import CachedReference


class Model:
    """Weights on a device. It computes nothing."""

    def __init__(self, device):
        self._device = torch.device(device)

    def parameters(self):
        yield SimpleNamespace(device=self._device)

    def __call__(self, _inputs, _documents, _targets):
        return torch.zeros(())


@pytest.fixture
def sent(monkeypatch):
    """What is sent to a device: whether it was page-locked, where to, and whether Python goes on meanwhile."""
    locked, found = [], []

    def pin(tensor):
        locked.append(tensor)
        return tensor

    def send(tensor, to, *, non_blocking):
        found.append((any(tensor is each for each in locked), to, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", send)
    return found


DEVICES = pytest.mark.parametrize(("device", "is_pinned"), [("cuda:0", True), ("cpu", False)])


@DEVICES
def test_all_that_goes_to_a_gpu_is_page_locked(sent, device, is_pinned):
    """Rows are page-locked when they are loaded, and what is made of them here is, too. Python waits for no copy.

    A GPU gets five tensors: inputs, documents, where these begin, and places and tokens with loss.
    """
    inputs, labels = torch.tensor([[1, 2, 3]]), torch.tensor([[NO_LOSS, 3, 4]])
    rows = [inputs, labels, torch.zeros_like(inputs)]
    if is_pinned:
        rows = [row.pin_memory() for row in rows]
    log_prob_sum(Model(device), *rows)
    assert sent == [(is_pinned, torch.device(device), True)] * (5 if is_pinned else 4)


@DEVICES
def test_a_tables_numbers_are_page_locked(sent, device, is_pinned):
    """Between the policy's forward and backward passes."""
    table = CachedReference(np.array([[1, 2], [3, 4]], dtype=np.float32))
    assert table.log_probs(Model(device), None, (1, 0)).tolist() == [3, 1, 4, 2]
    assert sent == [(is_pinned, torch.device(device), True)]
