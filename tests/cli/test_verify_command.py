"""`planner verify` in real FSDP processes, and that it finds planted faults."""

import dataclasses

import pytest

from planner.cli.counts import parse_history
from planner.cli.verify_command import verdict
from planner.errors import UserError
from planner.job import Job, batch_sizes
from planner.provenance.compare import check_forward_passes, close_weights, compare_batches, compare_bitwise
from planner.runner.verify_job import compare, through_processes, trace

pytestmark = pytest.mark.fsdp


@pytest.fixture
def job(tmp_path):
    """A bitwise job with dropout and a prime global batch."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return Job.model_validate(
        {
            "name": "verified",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.1},
            "data": {"kind": "text", "path": str(tmp_path / "text.txt")},
            "batch": {"global": 7, "max_micro": 2, "equality": "bitwise"},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": {"samples": 3, "every": 2},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 2},
        }
    )


def failed(checks):
    return {check.what: check.detail for check in checks if not check.passed}


def test_a_bitwise_job_is_identical(job, tmp_path):
    """Every check passes, and the last line says so."""
    checks = through_processes(job, [2, 3, 1], tmp_path / "runs")
    assert failed(checks) == {}
    assert checks[0].detail == "2, 3, 1"
    last = verdict(job, checks, [2, 3, 1])[-1]
    assert last.startswith(
        "verify: IDENTICAL to the last bit: 4 steps at 2 = through 2 -> 3 -> 1 workers (on the CPU, "
    )


def test_a_batches_job_is_equal_within_rounding(job, tmp_path):
    """The samples are equal. The tolerance stands beside the difference."""
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"equality": "balanced"})})
    job = job.model_copy(update={"model": job.model.model_copy(update={"dropout": 0.0})})
    checks = through_processes(job, [2, 3], tmp_path / "runs")
    assert failed(checks) == {}
    detail = {check.what: check.detail for check in checks}
    assert "tolerance 1e-05" in detail["losses"]
    assert "tolerance 1e-03" in detail["weights"]
    # Weights that are equal to the bit would mean that nothing was compared, or that `bitwise` says nothing.
    assert "difference 0.0e+00" not in detail["weights"]


def test_weights_that_are_not_close_fail():
    """The distance is measured over the whole model. The message names the tensor that differs most."""
    distances = {"model/a": (0.001, 3.0), "model/b": (0.02, 4.0)}
    assert close_weights(distances, "bf16").passed
    check = close_weights(distances, "fp32")
    assert not check.passed
    assert check.detail == "relative difference 4.0e-03, tolerance 1e-03, largest in b"


def swapped_sample(rank, launch, end_step):
    """Step 1 uses one other sample."""
    from planner.rehearsal.on_processes import train_observed
    from planner.train.batches import Loader

    load = Loader.load
    Loader.load = lambda self, cursor: load(self, cursor + (cursor == 7))
    try:
        return train_observed(rank, launch, end_step)
    finally:
        Loader.load = load


def one_ulp(rank, launch, end_step):
    """At step 1, one gradient element differs by one unit in the last place, on the worker that has it."""
    import torch

    from planner.rehearsal.on_processes import train_observed
    from planner.train import optimize

    clip, calls = optimize.clip_gradients, []

    def nudge(model, norm, clip_norm):
        clip(model, norm, clip_norm)
        calls.append(None)
        if launch.url.endswith("history") and len(calls) == 2 and end_step == 2 and rank == 0:
            local = model.get_parameter("head.weight").grad.to_local()
            local[0, 0] = torch.nextafter(local[0, 0], torch.tensor(torch.inf))

    optimize.clip_gradients = nudge
    try:
        return train_observed(rank, launch, end_step)
    finally:
        optimize.clip_gradients = clip


def rank_seeded_dropout(rank, launch, end_step):
    """Dropout depends on the worker instead of the sample."""
    from planner.rehearsal.on_processes import train_observed
    from planner.train import optimizer_step

    seed = optimizer_step.seed_randomness
    optimizer_step.seed_randomness = lambda base, position: seed(base + rank, position)
    try:
        return train_observed(rank, launch, end_step)
    finally:
        optimizer_step.seed_randomness = seed


def skipped_round(rank, launch, end_step):
    """Every worker leaves out the last round of every step."""
    from planner.rehearsal.on_processes import train_observed
    from planner.train import loop

    accumulate = loop.accumulate

    def short(model, objective, step):
        step.batches = step.batches[:-1]
        accumulate(model, objective, step)

    loop.accumulate = short
    try:
        return train_observed(rank, launch, end_step)
    finally:
        loop.accumulate = accumulate


@pytest.mark.parametrize(
    ("fault", "check", "detail"),
    [
        (swapped_sample, "samples", "differ first at step 1"),
        (one_ulp, "tensors by step", "differ first at step 1, in gradient/head.weight"),
        (rank_seeded_dropout, "tensors by step", "differ first at step 0, in gradient/"),
        (skipped_round, "samples", "differ first at step 0"),
        (skipped_round, "forward passes", "step 0, worker 0: 2, planned 4"),
    ],
)
def test_planted_faults_are_found_and_the_step_is_named(job, tmp_path, fault, check, detail):
    """Only the second history has the fault, and the verdict is a failure."""
    checks = through_processes(job, [2, 2], tmp_path / "runs", worker=fault)
    assert detail in failed(checks)[check]
    assert verdict(job, checks, [2, 2])[-1].startswith("verify: FAILED")


def test_nothing_passes_for_want_of_evidence(job, tmp_path):
    """Traces with missing parts, on one or both sides, do not pass."""
    through_processes(job, [2, 1], tmp_path)
    whole = trace(tmp_path / "fixed")
    assert all(check.passed for check in compare_bitwise(whole, whole))
    poorer = [
        ("held-out losses", {"evals": {}}),
        ("tensors by step", {"observed": {}}),
        ("weights", {"final": _without(whole.final, "model/")}),
        ("optimizer", {"final": _without(whole.final, "optimizer/")}),
        ("sums' scales", {"final": _without(whole.final, "fixed_point/")}),
    ]
    for what, missing in poorer:
        poor = dataclasses.replace(whole, **missing)
        assert what in failed(compare_bitwise(whole, poor))
        if what != "held-out losses":  # a job may have none
            assert what in failed(compare_bitwise(poor, poor))
    idle = dataclasses.replace(whole, work=())
    assert not check_forward_passes(batch_sizes(job), whole, idle).passed
    assert "losses" in failed(compare_batches(whole, dataclasses.replace(whole, steps={}), "fp32"))


def _without(manifest, beginning):
    return manifest.model_copy(
        update={"tensors": {n: d for n, d in manifest.tensors.items() if not n.startswith(beginning)}}
    )


def test_skipped_steps_are_compared_too(job, tmp_path):
    """The loss is infinite at step 1 in both histories. Every bit agrees."""
    job = job.model_copy(update={"train": job.train.model_copy(update={"non_finite": "skip"})})
    from planner.rehearsal.local_workers import LocalWorkers
    from planner.rehearsal.on_processes import rehearse
    from planner.rehearsal.stages import SizePhase, stages
    from planner.train.setup import Launch

    with LocalWorkers(2) as workers:
        for name, parts in (("fixed", [SizePhase(world_size=2, end_step=4)]), ("history", stages([2, 1], 4))):
            rehearse(workers, Launch(job=job, url=str(tmp_path / name)), parts, infinite_at_step_1)
    assert failed(compare(job, tmp_path / "fixed", tmp_path / "history", [2, 1])) == {}


def infinite_at_step_1(rank, launch, end_step):
    import math

    from planner.rehearsal.on_processes import train_observed
    from planner.train.objectives.lm import LanguageModelling

    loss = LanguageModelling.loss
    LanguageModelling.loss = lambda self, model, batch, totals: (
        loss(self, model, batch, totals) * (math.inf if batch.rows and 7 <= batch.position < 14 else 1.0)
    )
    try:
        return train_observed(rank, launch, end_step)
    finally:
        LanguageModelling.loss = loss


@pytest.mark.parametrize("text", ["", "0", "4,,3", "a", "4-3", "17", "-1"])
def test_a_history_that_is_none_is_refused(text):
    """The message says what to write."""
    with pytest.raises(UserError, match="--history"):
        parse_history(text, most=16)


def test_a_history_that_is_none_shows_one():
    """After what was found."""
    with pytest.raises(UserError, match=r"'x' is not a count from 1 to 65536\. Write counts such as 4,3,5,1$"):
        parse_history("x", most=16)
