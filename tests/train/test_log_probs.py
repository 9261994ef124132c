"""What a forward pass sends to a GPU, with a double of it."""

from types import SimpleNamespace

import pytest
import torch

from planner.data.samples import NO_LOSS
from planner.train.log_probs import log_prob_sum


class Model:
    """Weights on a device. It computes nothing."""

    def __init__(self, device):
        self._device = torch.device(device)

    def parameters(self):
        yield SimpleNamespace(device=self._device)

    def __call__(self, _inputs, _documents, _targets):
        return torch.zeros(())


@pytest.mark.parametrize(("device", "is_pinned"), [("cuda:0", True), ("cpu", False)])
def test_all_that_goes_to_a_gpu_is_page_locked(monkeypatch, device, is_pinned):
    """Rows are page-locked when they are loaded, and what is made of them here is, too. Python waits for no copy."""
    locked, sent = [], []

    def pin(tensor):
        locked.append(tensor)
        return tensor

    def send(tensor, to, *, non_blocking):
        sent.append((any(tensor is each for each in locked), to, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", send)
    inputs, labels = torch.tensor([[1, 2, 3]]), torch.tensor([[NO_LOSS, 3, 4]])
    rows = [inputs, labels, torch.zeros_like(inputs)]
    if is_pinned:
        rows = [row.pin_memory() for row in rows]
    log_prob_sum(Model(device), *rows)
    assert sent == [(is_pinned, torch.device(device), True)] * 4
