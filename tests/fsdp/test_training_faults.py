"""Two rehearsals of a job in real FSDP processes, and what verifiers say if one was trained with a fault."""

from functools import partial

import pytest
from forging import Unseen
from training_faults import FAULTS, train_with
from verifiers import audited, by_script

from planner.cli.verify_command import verdict
from planner.job import Job
from planner.provenance.compare import compare_batches
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import SizePhase, stages
from planner.runner.verify_job import compare, trace
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

WHOLE = [SizePhase(world_size=2, end_step=2)]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A bitwise job with dropout and a prime global batch."""
    text = tmp_path_factory.mktemp("data") / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return Job.model_validate(
        {
            "name": "verified",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.1},
            "data": {"kind": "text", "path": str(text)},
            "batch": {"global": 7, "max_micro": 2, "equality": "bitwise"},
            "train": {"steps": 2, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": {"samples": 3, "every": 2},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 2},
        }
    )


@pytest.fixture(scope="module")
def sound(workers, job, tmp_path_factory):
    """The run that all others are compared with."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    rehearse(workers, Launch(job=job, url=str(folder)), WHOLE, train_observed)
    return folder


def failed(checks):
    return {check.what: check.detail for check in checks if not check.passed}


def test_a_sound_run_passes_every_verifier(workers, job, sound, tmp_path):
    """Trained again by the same workers: what is found below is the fault."""
    rehearse(workers, Launch(job=job, url=str(tmp_path / "run")), WHOLE, train_observed)
    assert failed(compare(job, sound, tmp_path / "run", [2])) == {}
    assert audited(tmp_path / "run").clean
    assert by_script(tmp_path / "run", sound).clean


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_training_is_found(workers, job, sound, tmp_path, name):
    """By `planner verify`, and by the others if the ledger shows it. The step is named."""
    fault, run = FAULTS[name], tmp_path / "run"
    rehearse(workers, Launch(job=job, url=str(run)), WHOLE, partial(train_with, name))
    checks = compare(job, sound, run, [2])
    for check, detail in fault.verify.items():
        assert detail in failed(checks)[check]
    assert verdict(job, checks, [2])[-1].startswith("verify: FAILED")
    in_rounding = failed(compare_batches(trace(sound), trace(run), "fp32"))
    assert ("samples" in in_rounding) == ("samples" in fault.verify)

    ours, theirs = audited(run), by_script(run, sound)
    for expected, found in ((fault.audit, ours.findings), (fault.verify_run, theirs.found)):
        if isinstance(expected, Unseen):
            assert not found
        else:
            assert any(expected in each for each in found), found
    if not isinstance(fault.audit, Unseen):
        assert (ours.mismatched, (ours.lost, ours.repeated)) == (fault.mismatched, fault.counts)


def test_a_balanced_job_is_equal_within_rounding(workers, job, tmp_path):
    """At two sizes. The samples are equal. The tolerance is stated beside the difference."""
    job = job.model_copy(
        update={
            "batch": job.batch.model_copy(update={"equality": "balanced"}),
            "model": job.model.model_copy(update={"dropout": 0.0}),
        }
    )
    for name, parts in (("fixed", WHOLE), ("history", stages([2, 1], 2))):
        rehearse(workers, Launch(job=job, url=str(tmp_path / name)), parts, train_observed)
    checks = compare(job, tmp_path / "fixed", tmp_path / "history", [2, 1])
    assert failed(checks) == {}
    detail = {check.what: check.detail for check in checks}
    assert "tolerance 1e-05" in detail["losses"]
    assert "tolerance 1e-03" in detail["weights"]
    # Weights that are equal to the bit would mean that nothing was compared, or that `bitwise` says nothing.
    assert "difference 0.0e+00" not in detail["weights"]


def test_skipped_steps_are_compared_too(workers, job, tmp_path):
    """The loss is infinite at step 1 in both histories. Every bit agrees."""
    job = job.model_copy(update={"train": job.train.model_copy(update={"non_finite": "skip", "steps": 3})})
    for name, parts in (("fixed", [SizePhase(world_size=2, end_step=3)]), ("history", stages([2, 1], 3))):
        rehearse(workers, Launch(job=job, url=str(tmp_path / name)), parts, infinite_at_step_1)
    assert failed(compare(job, tmp_path / "fixed", tmp_path / "history", [2, 1])) == {}
    assert [step.skipped for step in trace(tmp_path / "history").steps.values()] == [False, True, False]


def infinite_at_step_1(rank, launch, end_step):
    import math

    from planner.rehearsal.on_processes import train_observed
    from planner.train.objectives.next_token import NextToken

    loss = NextToken.loss
    NextToken.loss = lambda self, model, batch, totals: (
        loss(self, model, batch, totals) * (math.inf if batch.rows and 7 <= batch.position < 14 else 1.0)
    )
    try:
        return train_observed(rank, launch, end_step)
    finally:
        NextToken.loss = loss
