"""Which passes of a block are compiled."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from planner.train.models.blocks import compile_block

pytestmark = pytest.mark.process


class Block(nn.Module):
    """The least that has weights."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden_states):
        """`(rows, tokens, 4)` -> the same."""
        return self.linear(hidden_states).relu()


def test_ghosts_and_passes_without_gradients_make_no_graphs(monkeypatch):
    """Two graphs are for one row and for several, of any number of tokens. Arguments may have names."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # graphs, without code for them
    block, before = Block(), counters["stats"]["unique_graphs"]
    compile_block(block)
    for rows, tokens in [(4, 4), (3, 7), (1, 1), (2, 1), (1, 5), (1, 9)]:
        block(torch.randn(rows, tokens, 4)).sum().backward()
        block(hidden_states=torch.randn(rows, tokens, 4)).sum().backward()
        with torch.no_grad():
            block(torch.randn(rows, tokens, 4))
    assert 1 <= counters["stats"]["unique_graphs"] - before <= 2
