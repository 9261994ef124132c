"""Models that are asked for log-probabilities never hold the logits of all tokens, with gradients and without."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.job import GptModel
from planner.train.log_probs import log_prob_sum, log_probs, no_training
from planner.train.models import head
from planner.train.models.gpt import VOCABULARY, Gpt
from planner.train.models.hf import HfCausal
from planner.train.sample_batches import Sequences

# The width is below a chunk: the transposed head has as many rows of the vocabulary.
ROWS, TOKENS, CHUNK = 4, 12, 8


class Largest(TorchDispatchMode):
    """The most rows of any tensor whose last dimension is the vocabulary."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor) and each.ndim and each.shape[-1] == self.vocabulary:
                self.rows = max(self.rows, each.numel() // self.vocabulary)
        return found


def gpt():
    return Gpt(GptModel(kind="gpt", layers=1, width=4, heads=2, context=TOKENS)), VOCABULARY


def llama():
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=97, num_key_value_heads=2, **sizes)
    return HfCausal(AutoModelForCausalLM.from_config(config)), 97


@pytest.mark.parametrize("make", [gpt, llama])
@pytest.mark.parametrize("way", ["sum", "each", "evaluation", "reference"])
def test_at_most_a_chunk_of_logits_exists(monkeypatch, make, way):
    """Of 48 tokens, 8 at a time. A sum is what SFT takes, one for each token what DPO and references take."""
    model, vocabulary = make()
    monkeypatch.setitem(head.CHUNK_LOGITS, "cpu", CHUNK * vocabulary)
    tokens = torch.randint(3, 90, (ROWS, TOKENS))
    sequences = Sequences(inputs=tokens, labels=tokens, documents=None, lengths=(TOKENS,) * ROWS, squares=0)
    with Largest(vocabulary) as largest:
        if way == "sum":
            log_prob_sum(model, tokens, tokens).backward()
        elif way == "each":
            log_probs(model, sequences).sum().backward()
        else:
            with no_training(model):
                log_prob_sum(model, tokens, tokens) if way == "evaluation" else log_probs(model, sequences)
    assert largest.rows == CHUNK
