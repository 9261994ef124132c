"""Which passes of a block are compiled."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM

from planner.data.model_folder import ModelFolder
from planner.job import GptModel, HfModel
from planner.train.models import document_attention
from planner.train.models.blocks import compile_block
from planner.train.models.document_attention import _in_pieces as attend_in_pieces
from planner.train.models.gpt import Gpt
from planner.train.models.hf import HfCausal, build_on_meta

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


def packed_row(lengths):
    """Tokens, and document numbers if there are several texts."""
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    return torch.arange(sum(lengths))[None] % 256, documents if len(lengths) > 1 else None


@pytest.mark.parametrize("kind", ["gpt", "gpt, recomputed", "hf"])
def test_packed_rows_make_few_graphs(tiny_model, monkeypatch, kind):
    """No more for other numbers of texts and tokens, or one text alone. The gradients are the plain ones."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    if kind != "hf":
        config = GptModel(kind="gpt", layers=2, width=16, heads=2, context=16)
        plain = Gpt(config, activation_checkpointing=kind != "gpt")
    else:
        folder = ModelFolder.find(HfModel(kind="hf", path=str(tiny_model("llama")), context=16))
        plain = HfCausal(AutoModelForCausalLM.from_pretrained(folder.path, attn_implementation="sdpa"))
        build_on_meta(folder)  # planner's sdpa gets its name
    compiled, before = copy.deepcopy(plain), counters["stats"]["unique_graphs"]
    for block in compiled.hf.model.layers if kind == "hf" else compiled.blocks:
        compile_block(block)
    made = []
    for lengths in ([3, 5, 2], [4], [1], [7, 1], [2, 3, 4, 5, 6], [9], [16, 16]):
        for model in (plain, compiled):
            model.zero_grad()
            model(*packed_row(lengths)).square().sum().backward()
        for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
        made.append(counters["stats"]["unique_graphs"] - before)
    assert made[1:] == [made[1]] * 6
    # Behind a break, code of each function that is called is a graph.
    assert made[1] <= {"gpt": 4, "gpt, recomputed": 2, "hf": 6}[kind]


def test_compiled_blocks_compute_texts_one_by_one(monkeypatch):
    """On CPUs, without a mask."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, lengths, real = Gpt(GptModel(kind="gpt", layers=1, width=16, heads=2, context=16)), [], attend_in_pieces
    compile_block(model.blocks[0])

    def noted(function, heads, pieces, *others):
        lengths.append([piece.stop - piece.start for piece, _ in pieces[0]])
        return real(function, heads, pieces, *others)

    monkeypatch.setattr(document_attention, "_in_pieces", noted)
    for texts in ([3, 5, 2], [7, 1]):
        model(*packed_row(texts)).square().sum().backward()
    assert lengths == [[3, 5, 2], [7, 1]]
