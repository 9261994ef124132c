"""`planner verify` in real FSDP processes, and that it finds planted faults."""

import dataclasses

import pytest

from planner.cli.counts import parse_history
from planner.cli.verify_command import verdict
from planner.errors import UserError
from planner.job import Job, batch_sizes
from planner.provenance.compare import check_forward_passes, close_weights, compare_batches, compare_bitwise
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.stages import SizePhase, stages
from planner.runner.verify_job import compare, through_processes, trace
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp


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
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": {"samples": 3, "every": 2},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 2},
        }
    )


@pytest.fixture(scope="module")
def workers():
    """Two processes, for histories of their own."""
    with LocalWorkers(2) as local:
        yield local


@pytest.fixture(scope="module")
def fixed(workers, job, tmp_path_factory):
    """The first history: all four steps on two workers."""
    from planner.rehearsal.on_processes import rehearse, train_observed

    folder = tmp_path_factory.mktemp("verified") / "fixed"
    rehearse(workers, Launch(job=job, url=str(folder)), [SizePhase(world_size=2, end_step=4)], train_observed)
    return folder


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
    ("fault", "details"),
    [
        (swapped_sample, {"samples": "differ first at step 1"}),
        (one_ulp, {"tensors by step": "differ first at step 1, in gradient/head.weight"}),
        (rank_seeded_dropout, {"tensors by step": "differ first at step 0, in gradient/"}),
        (skipped_round, {"samples": "differ first at step 0", "forward passes": "step 0, worker 0: 2, planned 4"}),
    ],
)
def test_planted_faults_are_found_and_the_step_is_named(workers, job, fixed, tmp_path, fault, details):
    """Only the second history has the fault, and the verdict is a failure."""
    from planner.rehearsal.on_processes import rehearse

    history = tmp_path / "history"
    rehearse(workers, Launch(job=job, url=str(history)), stages([2, 2], 4), fault)
    checks = compare(job, fixed, history, [2, 2])
    for check, detail in details.items():
        assert detail in failed(checks)[check]
    assert verdict(job, checks, [2, 2])[-1].startswith("verify: FAILED")


def test_nothing_passes_for_want_of_evidence(job, fixed):
    """Traces with missing parts, on one or both sides, do not pass."""
    whole = trace(fixed)
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


def test_skipped_steps_are_compared_too(workers, job, tmp_path):
    """The loss is infinite at step 1 in both histories. Every bit agrees."""
    from planner.rehearsal.on_processes import rehearse

    job = job.model_copy(update={"train": job.train.model_copy(update={"non_finite": "skip"})})
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


def test_gpus_that_are_not_there_are_asked_for_in_vain(cli, tmp_path):
    """Before a worker starts. On Ray, it trains on CPUs."""
    (tmp_path / "text").write_text("x" * 4000)
    assert cli("init", "job.yaml").code == 0
    answer = cli("verify", "job.yaml", "--gpu", "--history", "2,1", "--steps", "2")
    assert (answer.code, answer.err) == (
        2,
        "planner: --gpu: torch sees no GPU on this machine. Leave out --gpu to train on the CPU\n",
    )
    answer = cli("verify", "job.yaml", "--gpu", "--ray", "--history", "2,1", "--steps", "2")
    assert (answer.code, answer.out) == (2, "")
    assert "--gpu trains in local processes. Leave out --ray" in answer.err


def test_workers_with_a_gpu_each_use_nccl_and_others_share_one(monkeypatch):
    """NCCL refuses two ranks on one GPU."""
    import torch

    from planner.rehearsal.on_processes import gpu_backend

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpu_backend(3) == "cpu:gloo,cuda:nccl"
    assert gpu_backend(4) == "gloo"


def test_a_rehearsal_on_the_cpu_has_no_kernels_of_gpus(job):
    """A job for GPUs can be verified without one."""
    from planner.runner.verify_job import rehearsal_of

    asks = job.model_copy(update={"train": job.train.model_copy(update={"kernels": "liger"})})
    assert rehearsal_of(asks, 3).train.kernels == "own"
    assert rehearsal_of(asks, 3, on_gpus=True).train.kernels == "liger"
