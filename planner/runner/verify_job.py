"""`planner verify`: trains a job twice, at one world size and through several, and compares the two runs."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from planner.data.job_folders import check_here
from planner.dispatch.launch import absolute
from planner.errors import UserError
from planner.job import HfModel, Job, batch_sizes
from planner.job.compute import GPU_ATTENTION
from planner.provenance.compare import (
    Check,
    Trace,
    check_forward_passes,
    check_sizes,
    close_weights,
    compare_batches,
    compare_bitwise,
    compared,
    read_trace,
)
from planner.provenance.identity import open_data
from planner.provenance.split_randomness import outcome, randomness_checks, without_excuse
from planner.provenance.stage import pinned
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.stages import SizePhase, stages
from planner.runner import execute
from planner.runner.display import Display, Say, StartedRun, silent
from planner.runner.local import Local
from planner.runner.start import plan_start
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch


@dataclass(frozen=True, kw_only=True)
class Histories:
    """The two histories that a job is trained through, and what is compared."""

    fixed: tuple[SizePhase, ...]
    """all steps at the first size"""
    history: tuple[SizePhase, ...]
    """the steps shared out over all sizes"""
    equality: str
    compared: tuple[str, ...]
    """one text per comparison"""


def rehearsal_of(job: Job, steps: int, *, on_gpus: bool = False) -> Job:
    """The job with `steps` steps, and a commit every 2 steps so that a lost node costs little.

    On the CPU it trains without kernels that need a GPU. No GPU is asked of Ray in either case.
    """
    job = pinned(absolute(job, ""))
    kernels = job.train.kernels if on_gpus else "own"
    model = job.model
    if isinstance(model, HfModel) and model.attention in GPU_ATTENTION and not on_gpus:
        model = model.model_copy(update={"attention": "auto"})
    return job.model_copy(
        update={
            "model": model,
            "train": job.train.model_copy(
                update={"steps": steps, "epochs": None, "examples": None, "kernels": kernels}
            ),
            # A stored job is read again, and some settings are refused without GPUs.
            "workers": job.workers if on_gpus else job.workers.model_copy(update={"gpus": 0}),
            "checkpoint": job.checkpoint.model_copy(update={"every": "2 steps"}),
        }
    )


def histories(job: Job, sizes: Sequence[int], *, through_ray: bool) -> Histories:
    """What `verify` would do with a job from `rehearsal_of`. It checks the job's model and data.

    Raises:
        PlannerError: the model or the data cannot be used, or all sizes are one size on Ray.
    """
    sizes = sizes_on_ray(job, sizes) if through_ray else sizes
    check_here(job)
    open_data(job)
    fixed, history = _stages(job, sizes)
    return Histories(
        fixed=tuple(fixed),
        history=tuple(history),
        equality=job.batch.equality,
        compared=tuple(compared(job.batch.equality, job.train.precision)),
    )


def verify(
    job: Job,
    sizes: Sequence[int],
    *,
    through_ray: bool,
    on_gpus: bool = False,
    say: Say = silent,
    now: Say = silent,
) -> list[Check]:
    """Train a job from `rehearsal_of` through both histories in a temporary folder, and compare them.

    Raises:
        PlannerError: a history did not finish, or there is no GPU here.
    """
    with _scratch() as folder:
        if through_ray:
            checks = through_nodes(job, sizes, folder, say=say, now=now)
        else:
            checks = through_processes(job, sizes, folder, on_gpus=on_gpus, say=say, now=now)
        if outcome(checks) != "not compared":
            return checks
        say("the steps draw random numbers: training once more at the first size with others, to see what they change")
        first = min(sizes[0], job.batch.global_batch) if through_ray else sizes[0]
        return without_excuse(checks, with_other_numbers(job, first, folder, on_gpus=on_gpus, say=say, now=now))


def through_processes(
    job: Job, sizes: Sequence[int], folder: Path, *, on_gpus: bool = False, say: Say = silent, now: Say = silent
) -> list[Check]:
    """Train both histories in local processes, one after the other, and compare them."""
    from planner.rehearsal.on_processes import gpu_backend, rehearse, train_observed, train_on_gpu  # torch

    fixed, history = folder / "fixed", folder / "history"
    worker = train_on_gpu if on_gpus else train_observed
    with LocalWorkers(max(sizes), gpu_backend(max(sizes)) if on_gpus else "gloo") as workers:
        for url, parts in zip((fixed, history), _stages(job, sizes), strict=True):
            rehearse(workers, Launch(job=job, url=str(url)), parts, worker, say, now)
    now("comparing the two runs")
    return compare(job, fixed, history, sizes)


def through_nodes(job: Job, sizes: Sequence[int], folder: Path, *, say: Say = silent, now: Say = silent) -> list[Check]:
    """Train both histories on embedded Ray clusters, one after the other, and compare them."""
    fixed, history = folder / "fixed", folder / "history"
    clipped = sizes_on_ray(job, sizes)
    if clipped != list(sizes):
        say(f"at most one worker per sample, and no size twice in a row: {' -> '.join(map(str, clipped))}")
    workers = job.workers.model_copy(update={"min": 1, "max": max(clipped), "resources": {}})
    job = job.model_copy(update={"workers": workers})
    for url, parts in zip((fixed, history), _stages(job, clipped), strict=True):
        rehearse_on_ray(job, str(url), parts, say=say, now=now)
    now("comparing the two runs")
    return compare(job, fixed, history, clipped)


def rehearse_on_ray(job: Job, url: str, history: Sequence[SizePhase], *, say: Say = silent, now: Say = silent) -> None:
    """Train the job on a local cluster that changes as `history` says. Call it in the main thread.

    Its trackers are left out.

    Args:
        job: with room for all sizes of the history (`workers.max`).
        url: the run's folder.
        history: one stage per size.
        say: shows messages.
        now: shows what is done meanwhile.

    Raises:
        PlannerError: the run did not finish.
    """
    from planner.rehearsal.on_ray import Director, observed_hooks  # torch

    @contextmanager
    def changing(started: StartedRun) -> Iterator[Say]:
        assert started.cluster is not None
        sizes = " -> ".join(str(part.world_size) for part in history)
        now(f"starting the workers, and training {history[-1].end_step} steps at {sizes} workers")
        with Director(started.cluster, started.run, started.launch_id, history, say):
            yield silent

    job = job.model_copy(update={"tracking": (), "checkpoint": job.checkpoint.model_copy(update={"path": url})})
    nodes = history[0].world_size
    now(f"starting a Ray cluster of {nodes} nodes")
    start = plan_start(job, Local(nodes=nodes))
    start = replace(start, hooks=partial(observed_hooks, tuple(history)), eager=True)
    if not execute.run(start, Display(say=say, warn=say, watch=changing)).finished:
        raise KeyboardInterrupt
    say(f"{history[-1].end_step} steps done")


def with_other_numbers(
    job: Job, size: int, folder: Path, *, on_gpus: bool = False, say: Say = silent, now: Say = silent
) -> list[Check]:
    """Train the fixed history again with other random numbers in its steps, and compare it with the one in `folder`."""
    from planner.rehearsal import on_processes  # torch

    plain = on_processes.train_on_gpu if on_gpus else on_processes.train_observed
    worker = partial(on_processes.train_with_other_numbers, plain)
    start, _ = _stages(job, [size])
    with LocalWorkers(size, on_processes.gpu_backend(size) if on_gpus else "gloo") as workers:
        on_processes.rehearse(workers, Launch(job=job, url=str(folder / "others")), start, worker, say, now)
    return _compare_values(job, folder / "fixed", folder / "others")


def sizes_on_ray(job: Job, sizes: Sequence[int]) -> list[int]:
    """The sizes for Ray: at most one worker per sample, because more would only run ghosts.

    Raises:
        UserError: only one size is left.
    """
    clipped = [size for size, _ in groupby(min(size, job.batch.global_batch) for size in sizes)]
    if len(clipped) == 1:
        raise UserError(
            f"batch.global is {job.batch.global_batch}: on Ray, all of these sizes become {clipped[0]} workers. "
            "Write a smaller size in --history"
        )
    return clipped


def _stages(job: Job, sizes: Sequence[int]) -> tuple[list[SizePhase], list[SizePhase]]:
    """The stages of both histories: all steps at the first size, and the steps shared out over all sizes."""
    steps = job.train.steps or 0
    return [SizePhase(world_size=sizes[0], end_step=steps)], stages(sizes, steps)


def compare(job: Job, fixed: Path, history: Path, sizes: Sequence[int]) -> list[Check]:
    """Compare two finished runs of the job. The second run went through `sizes`."""
    here, there = trace(fixed), trace(history)
    is_bitwise = job.batch.equality == "bitwise"
    checks = compare_bitwise(here, there) if is_bitwise else _compare_values(job, fixed, history)
    is_auto = "auto" in (job.batch.max_micro, job.batch.max_tokens)
    passes = check_forward_passes(batch_sizes(job), here, there, is_auto=is_auto)
    checks = [check_sizes(sizes, there), *checks, passes]
    return [*checks, *randomness_checks(checks, job.batch.equality, here, there)]


def _compare_values(job: Job, fixed: Path, other: Path) -> list[Check]:
    """Compare samples, losses and weights of two finished runs, with the tolerances of `balanced`."""
    return [
        *compare_batches(trace(fixed), trace(other), job.train.precision),
        _compare_weights(job, fixed, other),
    ]


def _compare_weights(job: Job, fixed: Path, history: Path) -> Check:
    """Compare the final weights of both runs, one tensor at a time in memory."""
    from planner.train.checkpoints.checkpoint import read  # torch

    commits = [(run.storage, run.manifest(run.commits()[-1])) for run in (_run(fixed), _run(history))]
    here, there = (read(storage, manifest, "model/") for storage, manifest in commits)
    distances = {
        name: (float((a.double() - b.double()).norm()), float(a.double().norm()))
        for (name, a), (_, b) in zip(here, there, strict=True)
    }
    return close_weights(distances, job.train.precision)


def trace(path: Path) -> Trace:
    """Read a rehearsed run for the comparison."""
    run = _run(path)
    return read_trace(run, run.storage.read_from("observed.jsonl", 0))


def _run(path: Path) -> RunFolder:
    return RunFolder(Storage(str(path)))


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="planner-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
