"""Which models of transformers have logits that are a plain product with the output layer."""

import pytest
import torch
from torch import nn

from planner.train.models.head import Targets
from planner.train.models.hf import HfCausal
from planner.train.models.private import has_plain_head

SIZES = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_of(kind, **more):
    """A tiny model, with settings under which a scale or a cap shows."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt2", "gpt_neox", "gemma", "smollm3", "phi"]
)
def test_most_models_have_one_and_chunks_give_what_their_logits_give(kind):
    """With bias (phi) and without, tied (gemma) and not."""
    hf = model_of(kind)
    model = HfCausal(hf)
    assert model.has_plain_head
    inputs = torch.randint(3, 37, (2, 5))
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    places, tokens = torch.arange(10), torch.randint(37, (10,))
    for apart in (None, documents):
        found = model(inputs, apart, Targets(places=places, tokens=tokens, is_summed=False))
        expected = torch.log_softmax(model(inputs, apart).flatten(0, 1), dim=-1).gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gemma2", {"final_logit_softcapping": 30.0}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {"logit_scale": 0.25}),
    ],
)
def test_scaled_and_capped_logits_are_computed_whole(kind, more):
    """They are the model's own, whatever it does with them."""
    model = HfCausal(model_of(kind, **more))
    assert not model.has_plain_head
    inputs, tokens = torch.randint(3, 37, (1, 5)), torch.randint(37, (5,))
    found = model(inputs, None, Targets(places=torch.arange(5), tokens=tokens, is_summed=True))
    expected = torch.log_softmax(model(inputs).flatten(0, 1), dim=-1).gather(1, tokens[:, None]).sum()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_model_is_left_as_it_was():
    """The question is asked of the model itself."""
    hf = model_of("llama")
    inputs = torch.randint(3, 37, (1, 5))
    before = hf(input_ids=inputs).logits
    assert has_plain_head(hf)
    assert "forward" not in vars(hf.base_model)
    assert torch.equal(hf(input_ids=inputs).logits, before)


def test_a_head_that_is_not_a_linear_layer_is_left_to_the_model():
    """Such as one with adapters."""
    hf = model_of("llama")
    hf.set_output_embeddings(nn.Sequential(hf.get_output_embeddings()))
    assert not has_plain_head(hf)
