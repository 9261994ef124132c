"""planner's own model on a GPU: what keeps documents of packed rows apart. A stand-in is there for torch's kernel."""

import inspect
import subprocess
import sys

import pytest
import torch
from varlen_stand_in import newer_stand_in, stand_in

from planner.job import GptModel
from planner.train.models import gpt, varlen_attention
from planner.train.models.blocks import compile_block
from planner.train.models.document_attention import Documents, documents_on, mask_of, pieces_in, places_of
from planner.train.models.gpt import Gpt

LENGTHS = [[5, 1, 9, 1], [16], [3, 13]]
NUMBERS = torch.tensor([[number for number, n in enumerate(row) for _ in range(n)] for row in LENGTHS])
INPUTS = torch.arange(48).view(3, 16) * 11 % 256
CPU = torch.device("cpu")
ON_GPU = Documents.of(NUMBERS, CPU)
"""as a GPU gets them"""


def own_model(*, heads=2, how=False, **settings):
    torch.manual_seed(3)
    config = GptModel(kind="gpt", layers=2, width=32, heads=heads, context=16, **settings)
    model = Gpt(config, activation_checkpointing=how)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


@pytest.fixture(params=[stand_in, newer_stand_in], ids=["2.11", "2.13"])
def kernel(monkeypatch, request):
    """A GPU that has the kernel. Returns the settings of its calls."""
    calls = []

    def noted(*heads, **settings):
        calls.append((heads[0].dtype, heads[3].data_ptr(), settings["window_size"]))
        return request.param(*heads, **settings)

    noted.__signature__ = inspect.signature(request.param)
    monkeypatch.setattr(varlen_attention, "kernel", lambda: noted)
    monkeypatch.setattr(varlen_attention, "is_there", lambda _device: True)
    return calls


def passed(model, documents):
    """Logits and gradients."""
    model.zero_grad()
    logits = model(INPUTS, documents)
    logits.float().log_softmax(-1).gather(2, INPUTS.roll(-1, 1)[..., None]).mean().backward()
    return logits.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def test_documents_by_definition():
    assert ON_GPU.begins == (0, 5, 6, 15, 16, 32, 35, 48)
    assert ON_GPU.places.tolist() == list(ON_GPU.begins)
    assert ON_GPU.places.dtype == torch.int32
    assert ON_GPU.longest == 16
    assert ON_GPU.pieces() == pieces_in(NUMBERS)
    again = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])
    assert places_of(again).tolist() == [0, 1, 2, 4, 8]
    assert Documents.of(again, CPU).pieces() == pieces_in(again)


def test_a_cpu_gets_the_numbers_alone():
    """What it computes is what it was before there were `Documents`."""
    assert documents_on(CPU, NUMBERS) is NUMBERS
    assert documents_on(torch.device("meta"), NUMBERS).begins == ON_GPU.begins


@pytest.mark.parametrize("how", [False, True, "selective"])
def test_the_kernel_computes_what_a_mask_does(kernel, monkeypatch, how):
    """Logits and gradients. Each layer has the same places, made once."""
    model = own_model(how=how)
    logits, gradients = passed(model, NUMBERS)
    assert not kernel
    monkeypatch.setattr(gpt.Gpt, "_can_be_varlen", lambda *_: True)  # also in float32
    found, found_gradients = passed(model, ON_GPU)
    assert {call[1:] for call in kernel} == {(ON_GPU.places.data_ptr(), (-1, 0))}
    torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)
    for one, other in zip(found_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_bf16_passes_take_the_kernel(kernel):
    """Within the rounding of bf16 of those by masks."""
    model = own_model().bfloat16()
    (logits, _), (found, _) = passed(model, NUMBERS), passed(model, ON_GPU)
    assert [call[0] for call in kernel] == [torch.bfloat16] * 2
    assert float((found - logits).abs().max()) <= 0.02 * float(logits.abs().max())


@pytest.mark.parametrize(
    ("settings", "dtype", "takes"),
    [
        ({}, torch.bfloat16, True),
        ({}, torch.float32, False),
        ({"dropout": 0.1}, torch.bfloat16, False),
        ({"heads": 8}, torch.bfloat16, False),  # heads of width 4
    ],
)
def test_what_the_kernel_cannot_is_computed_as_before(kernel, settings, dtype, takes):
    """Dropout counts in training alone."""
    model = own_model(**settings).to(dtype)
    model(INPUTS, ON_GPU)
    assert bool(kernel) == takes
    model.eval()(INPUTS, ON_GPU)
    assert bool(kernel) == (takes or "dropout" in settings)


def test_deterministic_runs_and_compiled_blocks_keep_the_mask(kernel):
    """The first have the bits of earlier versions. The kernel was not tried in the second."""
    model = own_model().bfloat16()
    torch.use_deterministic_algorithms(mode=True)
    try:
        limits = model._limits(ON_GPU, torch.bfloat16)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert torch.equal(limits, mask_of(NUMBERS))
    assert model._limits(ON_GPU, torch.bfloat16) is ON_GPU
    compile_block(model.blocks[0])
    assert torch.equal(model._limits(ON_GPU, torch.bfloat16), mask_of(NUMBERS))
    assert not kernel


@pytest.mark.parametrize("num_documents", [1, 4, 16, 64])
@pytest.mark.parametrize("tokens", [512, 4096, 16_384])
def test_calls_are_for_few_long_documents(num_documents, tokens):
    """As measured on an H100: over 16,384 tokens, a call for each of 16 documents beats a mask."""
    begins = tuple(tokens * number // num_documents for number in range(num_documents + 1))
    made = Documents(numbers=torch.empty(1, tokens, device="meta"), places=torch.empty(0), begins=begins)
    limits = own_model()._limits(made, torch.float32)
    few = {512: 0, 4096: 1, 16_384: 16}[tokens]
    assert isinstance(limits, list) == (num_documents <= few)


def test_calls_and_a_mask_compute_the_same(monkeypatch):
    """In float32, for which there is no kernel."""
    model = own_model()
    (expected, gradients), (masked, _) = passed(model, NUMBERS), passed(model, ON_GPU)
    torch.testing.assert_close(masked, expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(gpt, "_CALL_PRODUCTS", 0)
    found, found_gradients = passed(model, ON_GPU)
    assert torch.equal(found, expected)
    assert all(torch.equal(one, other) for one, other in zip(found_gradients, gradients, strict=True))


@pytest.mark.process
def test_the_model_needs_torch_alone():
    """`bench/gpu.py` runs it where pydantic is missing."""
    code = """
import sys
sys.modules["pydantic"] = None
from types import SimpleNamespace
import torch
from planner.train.models.gpt import Gpt
model = Gpt(SimpleNamespace(layers=1, width=8, heads=1, context=4, dropout=0.0, tied_embeddings=False))
model(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([[0, 0, 1, 1]])).sum().backward()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
