"""Packed micro-batches have the losses, metrics and gradients of padded ones, for every objective and both models."""

import runpy
from pathlib import Path

import pytest
import torch
from test_formulas import OBJECTIVES, loaders, measured, model_of

from planner.data.model_folder import ModelFolder
from planner.job import HfModel, LmObjective
from planner.train.batches import Loader
from planner.train.models.hf import HfCausal, build_on_meta
from planner.train.reference.frozen import FrozenReference

PROJECT = Path(__file__).parents[2]
CASES = {name: (kind, config) for name, (kind, config, _) in OBJECTIVES.items()} | {
    "lm": ("chat", LmObjective(kind="lm")),
}
GLOBAL_BATCH, CURSOR = 11, 44


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """`llama(seed)` -> a tiny Llama."""
    folder = tmp_path_factory.mktemp("llama")
    make = runpy.run_path(str(PROJECT / "jobs" / "make_llama.py"))["make_llama"]
    make(folder, ["a cab bed", "had a fad"])

    def made(seed):
        from transformers import AutoModelForCausalLM

        build_on_meta(ModelFolder.find(HfModel(kind="hf", path=str(folder), context=24)))  # as planner registers sdpa
        hf = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in hf.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return HfCausal(hf)

    return made


@pytest.fixture(params=["gpt", "hf"])
def make_model(request):
    return model_of if request.param == "gpt" else request.getfixturevalue("llama")


def batches_of(kind, max_micro, *, is_packed):
    found = []
    for loader in loaders(kind, GLOBAL_BATCH, 2, max_micro):
        make = loader.make_batch
        packing = Loader(
            **{**vars(loader), "make_batch": lambda *given, make=make, **more: make(*given, **more, is_packed=is_packed)}
        )
        found += packing.load(CURSOR)
    return found


def error(one, other):
    """Relative, of all gradients together."""
    total = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return (total / sum(float(each.square().sum()) for each in other.values())) ** 0.5


@pytest.mark.parametrize("name", CASES)
def test_losses_metrics_and_gradients_are_those_of_padded_ones(make_model, name):
    """With ghosts, and a reference that is another model. Checksums and counts are equal."""
    kind, config = CASES[name]
    policy, reference = make_model(3), FrozenReference(make_model(5))
    padded, packed = (batches_of(kind, 3, is_packed=is_packed) for is_packed in (False, True))
    assert any(batch.sequences.is_packed for batch in packed)
    assert [batch.check_sum() for batch in packed] == [batch.check_sum() for batch in padded]
    loss, metrics, gradients = measured(config, policy, reference, packed)
    expected, expected_metrics, expected_gradients = measured(config, policy, reference, padded)
    print(name, abs(loss/expected-1), error(gradients, expected_gradients))
    assert loss == pytest.approx(expected, rel=1e-6)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-6)
    assert error(gradients, expected_gradients) < 1e-6
