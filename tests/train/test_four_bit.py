"""Weights in 4 bits: what packing keeps, and that a layer computes and differentiates with them."""

import hashlib
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from planner.train.models.four_bit import (
    BLOCK,
    LEVELS,
    FourBitLinear,
    pack,
    quantizable,
    quantize,
    row_bytes,
    stored,
    unpack,
)

WIDEST_GAP = max(high - low for low, high in pairwise(LEVELS))


def rows_of(num, length, seed=0, scale=1.0):
    return torch.randn(num, length, generator=torch.Generator().manual_seed(seed)) * scale


@given(
    num=st.integers(0, 5), length=st.integers(1, 200), seed=st.integers(0, 9), scale=st.sampled_from([1e-30, 0.02, 1e4])
)
def test_a_weight_becomes_the_nearest_level_of_its_block(num, length, seed, scale):
    """No weight moves by more than half of the widest gap between two levels. The largest of a block stays."""
    rows = rows_of(num, length, seed, scale)
    packed = pack(rows)
    assert packed.shape == (num, row_bytes(length))
    found = unpack(packed, length, torch.float32)
    for start in range(0, length, BLOCK):
        block, now = rows[:, start : start + BLOCK], found[:, start : start + BLOCK]
        largest = block.abs().amax(dim=1, keepdim=True)
        assert bool(((now - block).abs() <= (WIDEST_GAP / 2 + 1e-6) * largest).all())
        assert torch.equal(now.abs().amax(dim=1, keepdim=True), largest)


@given(cut=st.integers(0, 7), length=st.sampled_from([1, 64, 100]))
def test_rows_are_packed_one_by_one(cut, length):
    """So it does not matter which worker packs them."""
    rows = rows_of(7, length)
    assert torch.equal(pack(rows), torch.cat([pack(rows[:cut]), pack(rows[cut:])]))


def test_packed_weights_stay_when_they_are_packed_again():
    found = unpack(pack(rows_of(5, 200)), 200, torch.float32)
    assert torch.equal(unpack(pack(found), 200, torch.float32), found)


def test_the_bytes_are_those_of_bitsandbytes():
    """Codes and scales that `bitsandbytes.functional.quantize_4bit` (0.50.2, CPU, nf4, blocks of 64) makes of it."""
    packed = pack(rows_of(16, 256, seed=7, scale=0.02))
    codes, scales = packed[:, :128], packed[:, 128:]
    found = hashlib.sha256(codes.numpy().tobytes() + scales.numpy().tobytes()).hexdigest()
    assert found == "19a397e287e0238d92333835cac128dbea7904712c549997ef3b33f0fca55eeb"


def test_zeros_stay_zeros():
    assert torch.equal(unpack(pack(torch.zeros(2, 70)), 70, torch.float32), torch.zeros(2, 70))


def test_it_takes_four_and_a_half_bits():
    """32 bytes of codes and 4 of scale for 64 weights."""
    assert row_bytes(4096) * 8 / 4096 == 4.5


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_layer_computes_with_what_is_packed(dtype, rounding):
    """Also its input's gradient. The frozen weight gets none."""
    linear = nn.Linear(100, 7, bias=True).requires_grad_(requires_grad=False)
    layer = FourBitLinear(linear)
    layer.weight.copy_(stored(linear.weight))
    layer.bias = nn.Parameter(linear.bias.to(dtype), requires_grad=False)
    plain = nn.Linear(100, 7, dtype=dtype).requires_grad_(requires_grad=False)
    plain.weight.copy_(unpack(layer.weight.view(torch.uint8), 100, dtype))
    plain.bias.copy_(linear.bias)
    results = []
    for each in (layer, plain):
        inputs = rows_of(3, 100, seed=1).view(1, 3, 100).to(dtype).requires_grad_()
        outputs = each(inputs)
        outputs.square().sum().backward()
        results.append((outputs.detach(), inputs.grad))
    for found, expected in zip(*results, strict=True):
        assert float((found - expected).abs().max()) <= rounding * float(expected.abs().max())
    assert layer.weight.grad is None


@given(length=st.integers(1, 200))
def test_fsdp_of_any_torch_can_hold_the_bytes(length):
    """Before 2.13 it shards and keeps floating-point types alone. Bits stay, also those that are NaN as bfloat16."""
    layer, rows = FourBitLinear(nn.Linear(length, 5)), rows_of(5, length, scale=1e30)
    layer.weight.copy_(stored(rows))
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight.view(torch.uint8), pack(rows))


def test_all_linear_layers_but_the_head_are_packed(tiny_model):
    """Adapters and embeddings are not."""
    from planner.data.model_folder import ModelFolder
    from planner.job import HfModel
    from planner.train.models.hf import build_on_meta

    settings = {"kind": "hf", "path": str(tiny_model("llama")), "context": 24, "lora": {"rank": 2}, "frozen": "nf4"}
    model = build_on_meta(ModelFolder.find(HfModel.model_validate(settings)))
    names = quantizable(model.hf)
    assert len(names) == 14
    assert all(name.endswith("_proj.base_layer") for name in names)
    quantize(model.hf)
    assert [name for name, module in model.hf.named_modules() if isinstance(module, FourBitLinear)] == names
    assert quantizable(model.hf) == []


def test_a_model_without_linear_layers_is_refused():
    """GPT-2's are Conv1D. It would train in float32 without a word."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from planner.errors import UserError

    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_layer=1))
    with pytest.raises(UserError, match=r"nf4 packs layers of torch's nn\.Linear, and gpt2 has none but the head"):
        quantize(hf)
