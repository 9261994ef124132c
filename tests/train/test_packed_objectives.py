"""Packed micro-batches have the losses, metrics and gradients of padded ones, for every objective and both models."""

import dataclasses
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_sets import SampleSet
from test_formulas import OBJECTIVES, loaders, measured, model_of

from planner.data.model_folder import ModelFolder
from planner.data.samples import Text
from planner.job import HfModel, LmObjective
from planner.train.log_probs import log_probs, no_training
from planner.train.models.hf import HfCausal, build_on_meta
from planner.train.reference.cache import CachedReference
from planner.train.reference.frozen import FrozenReference, UniformReference
from planner.train.sample_batches import pair_batch, text_batch

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
    """Those of all workers."""
    found = []
    for loader in loaders(kind, GLOBAL_BATCH, 2, max_micro):
        make_batch = partial(loader.make_batch, is_packed=is_packed)
        found += dataclasses.replace(loader, make_batch=make_batch).load(CURSOR).batches
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
    assert loss == pytest.approx(expected, rel=1e-6)
    assert metrics == pytest.approx(expected_metrics, rel=2e-5, abs=1e-5)
    # Rounding: both are three to ten times as far from the formula in float64.
    assert error(gradients, expected_gradients) < 3e-6


@pytest.mark.parametrize("name", ["sft over tokens", "dpo", "kto"])
def test_recomputed_blocks_change_no_bit(name):
    """Activation checkpointing computes the same documents again."""
    kind, config = CASES[name]
    plain, recomputed = model_of(3), model_of(3)
    for block in recomputed.blocks:
        block.activation_checkpointing = "selective"
    batches = batches_of(kind, 3, is_packed=True)
    expected = measured(config, plain, FrozenReference(model_of(5)), batches)
    found = measured(config, recomputed, FrozenReference(model_of(5)), batches)
    assert found[:2] == expected[:2]
    assert all(torch.equal(found[2][name], expected[2][name]) for name in expected[2])


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_a_cached_reference_is_looked_up_by_pair(make_model, name):
    """Its table gives one number for each text, wherever the texts are in a row."""
    kind, config = CASES[name]
    policy, other = make_model(3), make_model(5)
    data = SampleSet(kind=kind)
    with no_training(other):
        whole = pair_batch(data, list(range(data.num_rows)), 0)
        table = log_probs(other, whole.sequences).view(2, -1).T.contiguous().numpy()
    batches = batches_of(kind, 3, is_packed=True)
    loss, _, gradients = measured(config, policy, CachedReference(table), batches)
    expected, _, expected_gradients = measured(config, policy, FrozenReference(other), batches)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert error(gradients, expected_gradients) < 1e-5


def test_texts_with_documents_are_computed_apart(make_model):
    """Rows of several documents, as `data.packing` makes them, are laid behind each other."""

    data = SampleSet(kind="chat", context=12)  # two are no longer than the model's context

    class Rows:
        def samples(self, rows):
            return [joined(data.sample(row), data.sample(row + 20)) for row in rows]

    model, config = make_model(3), LmObjective(kind="lm")
    padded, packed = (text_batch(Rows(), [1, 2, 3], 0, is_packed=is_packed) for is_packed in (False, True))
    assert packed.check_sum() == padded.check_sum()
    loss, _, gradients = measured(config, model, UniformReference(), [packed])
    expected, _, expected_gradients = measured(config, model, UniformReference(), [padded])
    apart = [text_batch(data, [row, row + 20], 0) for row in (1, 2, 3)]
    alone, _, _ = measured(config, model, UniformReference(), apart)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert loss == pytest.approx(alone, rel=1e-6)
    assert error(gradients, expected_gradients) < 3e-6


def joined(*texts):
    """A packed row."""
    return Text(
        inputs=np.concatenate([text.inputs for text in texts]),
        labels=np.concatenate([text.labels for text in texts]),
        documents=np.repeat(np.arange(len(texts), dtype=np.int32), [len(text.inputs) for text in texts]),
    )
