"""FLOPs by formula against FLOPs counted operation by operation, and the table of devices."""

import pytest
import torch
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from planner.job import GptModel, Lora
from planner.train.batches import TokenCounts
from planner.train.device_peaks import DEVICE_PEAKS, peak_of
from planner.train.flops import PassFlops, forward_flops, step_flops
from planner.train.models.gpt import Gpt
from planner.train.reference.frozen import FrozenReference, PolicyWithoutAdapters, UniformReference

CONTEXT = 64


def counted(model, rows, length, *, has_gradient=True):
    """Count every matrix product of a pass. Attention by plain products, not halved: kernels may repeat some."""
    inputs = torch.arange(rows * length).view(rows, length) % 250
    with sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(has_gradient):
        counter = FlopCounterMode(display=False)
        with counter:
            logits = model(inputs)
            if has_gradient:
                logits.sum().backward()
    return counter.get_total_flops()


def of_rows(flops, rows, length):
    return flops.of(rows * length, rows * length**2)


@examples(20)
@given(
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    channels=st.sampled_from([4, 8]),
    tied=st.booleans(),
    checkpointed=st.booleans(),
    rows=st.integers(1, 3),
    length=st.integers(1, 17),
)
def test_our_model_costs_what_is_counted(layers, heads, channels, tied, checkpointed, rows, length):
    """To the FLOP, forward and backward, and without gradient. Recomputed activations are not counted."""
    config = GptModel(
        kind="gpt", layers=layers, width=heads * channels, heads=heads, context=CONTEXT, tied_embeddings=tied
    )
    model = Gpt(config)
    formula = step_flops(Gpt(config, activation_checkpointing=checkpointed), CONTEXT, UniformReference())
    assert of_rows(formula.samples, rows, length) == counted(model, rows, length)
    assert of_rows(formula.mismatched, rows, length) == counted(model, rows, length, has_gradient=False)
    assert forward_flops(model, CONTEXT) == formula.mismatched


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt_neox"])
def test_families_cost_what_is_counted(tiny_model, family):
    """Shared keys and values and a head size of its own change only the shapes of the matrices."""
    model = hf_model(tiny_model(family))
    formula = step_flops(model, CONTEXT, UniformReference())
    assert of_rows(formula.samples, 2, 9) == counted(model, 2, 9)


def test_a_window_counts_only_if_it_is_as_long_as_the_context(tiny_model):
    """Mistral's window of 4 tokens: with a longer context, its attention is left out."""
    model = hf_model(tiny_model("mistral"))
    narrow, wide = (step_flops(model, context, UniformReference()).samples for context in (5, 4))
    assert (narrow.per_square, wide.per_square) == (0, 12 * 2 * 32)
    assert narrow.per_token == wide.per_token


def test_layers_may_differ():
    """Gemma 4: layers with a window have other heads than the rest."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from planner.train.models.hf import HfCausal

    try:
        config = AutoConfig.for_model(
            "gemma4_text", num_hidden_layers=6, hidden_size=32, vocab_size=64, vocab_size_per_layer_input=64
        )
    except ValueError:
        pytest.skip("this transformers has no Gemma 4")
    with torch.device("meta"):
        model = HfCausal(AutoModelForCausalLM.from_config(config))
    narrow, wide = (step_flops(model, context, UniformReference()).samples for context in (513, 512))
    # The last of the six has 8 heads of 512 channels, the others 8 of 256 and a window of 512 tokens.
    assert narrow.per_square == 12 * 8 * 512
    assert wide.per_square == 12 * 8 * (512 + 5 * 256)
    assert narrow.per_token == wide.per_token > 0


def test_a_configuration_that_cannot_be_read_has_no_flops():
    """Training goes on without them."""

    class Unreadable:
        num_hidden_layers = 1

        def get_text_config(self):
            raise ValueError("two of them")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert step_flops(model, CONTEXT, UniformReference()).of(TokenCounts(inputs=5)) > 0
    model.config = Unreadable()
    assert step_flops(model, CONTEXT, UniformReference()).of(TokenCounts(inputs=5)) == 0
    assert forward_flops(model, CONTEXT) == PassFlops()


def test_a_mixture_of_experts_is_not_known():
    """Its tokens use a part of its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from planner.train.models.hf import HfCausal

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        moe = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", num_key_value_heads=1, **sizes))
    formula = step_flops(HfCausal(moe), CONTEXT, UniformReference())
    assert formula.of(TokenCounts(inputs=5, squares=25)) == 0


def test_frozen_weights_have_no_gradient_of_their_own(tiny_model):
    """LoRA. The formula counts the gradients of the first block's inputs too, though nothing needs them."""
    from planner.train.models.hf import HfCausal, add_adapters

    base = hf_model(tiny_model("llama"))
    add_adapters(base.hf, Lora(rank=2))
    model = HfCausal(base.hf, has_adapters=True)
    rows, length = 2, 9
    tokens, squares = rows * length, rows * length**2
    frozen, trained = (
        sum(
            module.weight.numel()
            for module in model.modules()
            if isinstance(module, torch.nn.Linear) and module.weight.requires_grad is is_trained
        )
        for is_trained in (False, True)
    )
    formula = step_flops(model, CONTEXT, PolicyWithoutAdapters())
    training = step_flops(model, CONTEXT, UniformReference()).samples
    assert training.of(tokens, squares) == (4 * frozen + 6 * trained) * tokens + 12 * 2 * 32 * squares
    assert formula.samples == training + PassFlops(per_token=2 * frozen, per_square=4 * 2 * 32)
    # The projections to queries, keys and values of the first block: 32 x (32 + 16 + 16), and their adapters' A.
    unneeded = 2 * (32 * (32 + 16 + 16) + 3 * 2 * 32) * tokens
    assert training.of(tokens, squares) - counted(model, rows, length) == unneeded


def test_a_reference_model_costs_a_pass_of_its_own():
    """Also where it is another model, and over the mismatched sequences."""
    policy, other = (Gpt(GptModel(kind="gpt", layers=n, width=8, heads=2, context=CONTEXT)) for n in (1, 2))
    alone = step_flops(policy, CONTEXT, UniformReference())
    both = step_flops(policy, CONTEXT, FrozenReference(other.requires_grad_(requires_grad=False)))
    assert both.samples == alone.samples + forward_flops(other, CONTEXT)
    counts = TokenCounts(inputs=7, squares=49, mismatched=3, mismatched_squares=9)
    extra = forward_flops(policy, CONTEXT) + forward_flops(other, CONTEXT)
    assert both.of(counts) == both.samples.of(7, 49) + extra.of(3, 9)


def hf_model(folder):
    from transformers import AutoModelForCausalLM

    from planner.train.models.hf import HfCausal

    return HfCausal(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa"))


# -- devices


@pytest.mark.parametrize(
    ("name", "bf16", "tf32", "fp32"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 156, 19.5),
        ("NVIDIA A100-PCIE-40GB", 312, 156, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 156, 19.5),
        ("NVIDIA H100 80GB HBM3", 989.5, 494.5, 67),
        ("NVIDIA H100 PCIe", 756, 378, 51),
        ("NVIDIA H100 NVL", 835.5, 417.5, 60),
        ("NVIDIA H200", 989.5, 494.5, 67),
        ("NVIDIA GH200 480GB", 990, 494, 67),
        ("NVIDIA A10", 125, 62.5, 31.2),
        ("NVIDIA A10G", 70, 35, 31.52),
        ("NVIDIA L4", 121, 60, 30.3),
        ("NVIDIA L40S", 362.05, 183, 91.6),
        ("Tesla T4", 0, 0, 8.1),
        ("Tesla V100-SXM2-16GB", 0, 0, 15.7),
        ("Tesla V100-PCIE-32GB", 0, 0, 14),
        ("NVIDIA GeForce RTX 3090 Ti", 80, 40, 40),
        ("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0, 0),
        ("NVIDIA GeForce RTX 4090 D", 0, 0, 0),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 0, 0, 0),
        ("AMD Instinct MI300X", 0, 0, 0),
    ],
)
def test_a_device_has_its_peaks(name, bf16, tf32, fp32):
    """By its name in CUDA. What is not in the table is not known, a part of a GPU included."""
    found = [peak_of(name, kind) for kind in ("bf16", "tf32", "fp32")]
    assert found == [bf16 * 1e12, tf32 * 1e12, fp32 * 1e12]


def test_no_device_hides_another():
    """The first one with all its words counts, so one with more words comes first. Each has its source."""
    for i, device in enumerate(DEVICE_PEAKS):
        assert device.source
        assert not any(set(earlier.words) <= set(device.words) for earlier in DEVICE_PEAKS[:i])
        assert device.bf16 >= device.tf32 * 1.9
