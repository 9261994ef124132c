"""The comparison of two histories: nothing passes for want of evidence, and rounding has a bound."""

import dataclasses

import pytest

from planner.plan import BatchSizes
from planner.provenance.compare import (
    check_forward_passes,
    check_sizes,
    close_weights,
    compare_batches,
    compare_bitwise,
    read_trace,
)
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


@pytest.fixture
def whole(history):
    """The trace of the recorded run."""
    run = RunFolder(Storage(str(history)))
    return read_trace(run, run.storage.read_from("observed.jsonl", 0))


def failed(checks):
    return {check.what for check in checks if not check.passed}


def without(manifest, beginning):
    tensors = {name: digest for name, digest in manifest.tensors.items() if not name.startswith(beginning)}
    return manifest.model_copy(update={"tensors": tensors})


@pytest.mark.parametrize(
    ("what", "missing"),
    [
        ("held-out losses", lambda _whole: {"evals": {}}),
        ("tensors by step", lambda _whole: {"observed": {}}),
        ("weights", lambda whole: {"final": without(whole.final, "model/")}),
        ("optimizer", lambda whole: {"final": without(whole.final, "optimizer/")}),
        ("sums' scales", lambda whole: {"final": without(whole.final, "fixed_point/")}),
    ],
)
def test_a_trace_without_a_part_does_not_pass(whole, what, missing):
    """Neither against a whole one, nor against another without it. A job may have no held-out losses."""
    assert failed(compare_bitwise(whole, whole)) == set()
    poor = dataclasses.replace(whole, **missing(whole))
    assert failed(compare_bitwise(whole, poor)) == {what}
    assert failed(compare_bitwise(poor, poor)) == ({what} - {"held-out losses"})


def test_forward_passes_are_those_of_the_caps_that_a_group_has_found(whole):
    """`batch.max_micro: auto`: the job alone would let each share be one round."""
    auto = BatchSizes(global_batch=5, max_micro=5)
    work = tuple(dataclasses.replace(each, attempts=1, forward_passes=(3, 3)) for each in whole.work)
    found = dataclasses.replace(whole, work=work, sizes={2: dataclasses.replace(auto, max_micro=1)})
    assert not check_forward_passes(auto, found).passed
    assert check_forward_passes(auto, found, is_auto=True).passed


def test_steps_and_forward_passes_that_are_not_there_do_not_pass(whole):
    """In `balanced`, too."""
    sizes = BatchSizes(global_batch=5, max_micro=2, equality="bitwise")
    assert check_forward_passes(sizes, whole, whole).passed
    assert not check_forward_passes(sizes, whole, dataclasses.replace(whole, work=())).passed
    assert failed(compare_batches(whole, whole, "fp32")) == set()
    assert "losses" in failed(compare_batches(whole, dataclasses.replace(whole, steps={}), "fp32"))


@pytest.mark.parametrize("sizes", [[4, 2, 3], [4, 2, 3, 2, 1], [2, 4, 3, 2]])
def test_a_history_through_other_sizes_does_not_pass(whole, sizes):
    """A world size that never changed would prove nothing."""
    assert check_sizes([4, 2, 3, 2], whole).passed
    assert not check_sizes(sizes, whole).passed


def test_weights_that_are_not_close_fail():
    """The distance is measured over the whole model. The message names the tensor that differs most."""
    distances = {"model/a": (0.001, 3.0), "model/b": (0.02, 4.0)}
    assert close_weights(distances, "bf16").passed
    check = close_weights(distances, "fp32")
    assert not check.passed
    assert check.detail == "relative difference 4.0e-03, tolerance 1e-03, largest in b"
