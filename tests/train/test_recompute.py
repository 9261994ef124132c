"""Activation checkpointing: what is computed twice, and that gradients stay the same to the bit."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from planner.data.model_folder import ModelFolder
from planner.job import GptModel, HfModel
from planner.train.models.blocks import checkpoint_settings, is_of_adapter
from planner.train.models.four_bit import FourBitLinear, quantize, stored
from planner.train.models.gpt import Gpt
from planner.train.models.hf import build_on_meta

TOKENS = torch.arange(12).view(2, 6)
# Of a block of our model: projections in and out of attention, and two of the feed-forward layer.
PRODUCTS_PER_BLOCK = 4


class Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def backward(how):
    """The operations of a backward pass, with what it computes again, and the gradients."""
    torch.manual_seed(0)
    model = Gpt(GptModel(kind="gpt", layers=2, width=16, heads=2, context=8), activation_checkpointing=how)
    loss = model(TOKENS).square().sum()
    with Counted() as counted:
        loss.backward()
    return counted.counts, [parameter.grad for parameter in model.parameters()]


def test_selective_computes_every_second_product_again_and_no_attention():
    """Gradients are equal to the bit."""
    plain, expected = backward(how=False)
    whole, of_whole = backward(how=True)
    chosen, of_chosen = backward(how="selective")
    products = [found.get("addmm", 0) for found in (plain, whole, chosen)]
    # The last product of a block is not needed for any gradient, so it is never computed again.
    assert products[0] == 0
    assert products[0] < products[2] < products[1] <= 2 * PRODUCTS_PER_BLOCK
    attention = [sum(count for name, count in found.items() if "attention" in name) for found in (plain, whole, chosen)]
    assert attention[1] == attention[0] + 2
    assert attention[2] == attention[0]
    # What is cheap to compute again is not kept.
    assert plain.get("gelu", 0) == 0 < whole["gelu"] == chosen["gelu"]
    for found in (of_whole, of_chosen):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_models_of_transformers_have_it_too(tiny_model, family):
    """The same gradients, and attention once."""
    folder = ModelFolder.find(HfModel(kind="hf", path=str(tiny_model(family)), context=24))
    found = []
    for how in (False, "selective"):
        model = build_on_meta(folder, activation_checkpointing=how)
        model.to_empty(device="cpu").train()
        torch.manual_seed(0)
        model.hf.init_weights()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.05)
        loss = model(TOKENS).square().sum()
        with Counted() as counted:
            loss.backward()
        forward = [name for name in counted.counts if "attention" in name and "backward" not in name]
        found.append(([p.grad for p in model.parameters()], forward))
    (expected, _), (gradients, recomputed) = found
    assert recomputed == []
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def adapted_gradients(folder, how):
    """Of a small model with adapters that change its outputs, whose frozen layers may be in 4 bits."""
    model = build_on_meta(folder, activation_checkpointing=how)
    if folder.model.frozen == "nf4":
        quantize(model.hf)
    model.to_empty(device="cpu").train()
    torch.manual_seed(0)
    model.hf.init_weights()
    with torch.no_grad():
        for layer in (each for each in model.modules() if isinstance(each, FourBitLinear)):
            layer.weight.copy_(stored(torch.randn(layer.out_features, layer.in_features)))
        for name, parameter in model.named_parameters():
            if parameter.dtype == torch.float32:
                parameter.normal_(std=0.2 if "lora_" in name else 0.05)
    torch.manual_seed(1)
    loss = model(TOKENS).square().sum()
    loss.backward()
    return {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("frozen", ["fp32", "nf4"])
def test_adapters_get_the_same_gradients_however_activations_are_computed(tiny_model, frozen, dropout):
    """To the bit, with dropout in front of the adapters and with frozen layers in 4 bits."""
    settings = {"path": str(tiny_model("llama")), "context": 24, "lora": {"rank": 2, "dropout": dropout}}
    folder = ModelFolder.find(HfModel.model_validate({"kind": "hf", "frozen": frozen, **settings}))
    expected, whole, chosen = (adapted_gradients(folder, how) for how in (False, True, "selective"))
    assert len(expected) == 2 * 14
    assert all(torch.count_nonzero(gradient) for gradient in expected.values())
    for found in (whole, chosen):
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


@pytest.mark.parametrize(
    ("weight", "rank", "expected"),
    [
        ((4096, 16), 16, True),  # down to the rank
        ((16, 4096), 16, True),  # and up again
        ((4096, 1024), 16, False),  # keys and values of several heads
        ((4096, 1024), None, False),  # a model without adapters
        ((2048, 256), 64, False),  # one head of keys, and adapters of a high rank
        ((256, 64), 64, True),
    ],
)
def test_products_of_adapters_have_a_side_that_is_the_rank(weight, rank, expected):
    """Narrow layers of the model itself are not taken for adapters."""
    assert is_of_adapter(torch.Size(weight), rank) is expected


# As torch and the package flash-attn name theirs. No name says "attention".
@pytest.mark.parametrize("operation", ["torch_attn::_varlen_attn", "flash_attn::_flash_attn_varlen_forward"])
def test_attention_of_other_libraries_is_kept_too(operation):
    """`model.attention: varlen` and `flash_attention_2` compute attention by operations that are not torch's own."""
    library, name = operation.split("::")
    calls = []

    def attention(x: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        return x * 2

    attend = torch.library.custom_op(f"{library}::of_a_test{name}", attention, mutates_args=())
    attend.register_autograd(lambda _, gradient: gradient * 2)
    for how, expected in ((True, 2), ("selective", 1)):
        calls.clear()
        inputs = torch.ones(3, requires_grad=True)
        checkpoint(lambda x: attend(x).sin(), inputs, **checkpoint_settings(how)).sum().backward()
        assert len(calls) == expected
