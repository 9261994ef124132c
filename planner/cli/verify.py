"""`planner verify JOB`: the proof that world sizes do not matter, on this machine, in real FSDP processes."""

import dataclasses
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.base.text import counted
from planner.cli.counts import parse_history
from planner.cli.options import DryRunOption, JobArgument, JsonOption, SetOption, console
from planner.errors import UserError
from planner.job import Job

if TYPE_CHECKING:
    from planner.provenance.compare import Check, Trace
    from planner.rehearsal.on_processes import Worker
    from planner.store.run import Run

# Real processes on one machine: more than these only wait for each other.
_MOST_WORKERS = 16


def verify(
    job: JobArgument,
    history: Annotated[
        str, typer.Option(metavar="SIZES", help="world sizes, one after another; the first is also the fixed one")
    ] = "4,3,5,1",
    steps: Annotated[int, typer.Option(min=1, help="in the place of train.steps, shared out over the history")] = 12,
    through_ray: Annotated[
        bool, typer.Option("--ray", help="on an embedded Ray cluster, whose nodes come, get notice and die, instead")
    ] = False,
    set_: SetOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the job twice, at a fixed size and through a history of sizes, and compare everything.

    With batch.equality: bitwise, every bit must agree; with batches, losses to a stated tolerance. Exits with 1 if not.
    """
    from planner.files import read_job

    sizes = parse_history(history, most=_MOST_WORKERS)
    if len(set(sizes)) == 1:
        other = 2 if sizes[0] == 1 else 1
        raise UserError(
            f"--history {history}: one size proves nothing; write two different ones, such as {sizes[0]},{other}"
        )
    if len(sizes) > steps:
        raise UserError(
            f"--history {history}: {len(sizes)} sizes do not fit into {steps} steps; write --steps {len(sizes)}"
        )
    spec = rehearsal_of(read_job(job, set_ or []), steps)
    if dry_run:
        _print_dry_run(spec, _sizes_on_ray(spec, sizes) if through_ray else sizes, as_json=as_json)
        return
    out = console()
    if not as_json:
        how = " on Ray, whose nodes come, get notice and die" if through_ray else ""
        path = " -> ".join(map(str, sizes))
        what = f"{counted(steps, 'step')} at {counted(sizes[0], 'worker')}, and again through {path}"
        out.print(f"{spec.name}: {what}{how}", soft_wrap=True)
    began_s = time.monotonic()

    def say(line: str) -> None:
        if not as_json:
            out.print(f"{time.monotonic() - began_s:5.0f} s  {line}", soft_wrap=True)

    with ended_like_ctrl_c(), _scratch() as folder:
        through = through_nodes if through_ray else through_processes
        checks = through(spec, sizes, folder, say=say)
    passed = all(check.passed for check in checks)
    if as_json:
        import json

        rows = [dataclasses.asdict(check) for check in checks]
        found = {"passed": passed, "equality": spec.batch.equality, "device": "cpu", "checks": rows}
        typer.echo(json.dumps(found, indent=1))
    else:
        for line in verdict(spec, checks, sizes):
            out.print(line, soft_wrap=True)
    if not passed:
        raise typer.Exit(1)


def rehearsal_of(job: Job, steps: int) -> Job:
    """The job with so many steps, on the CPU, committing often enough that a lost node costs little."""
    from planner.dispatch.launch import absolute

    job = absolute(job, "")
    return job.model_copy(
        update={
            "train": job.train.model_copy(update={"steps": steps, "epochs": None, "examples": None}),
            "workers": job.workers.model_copy(update={"gpus": 0}),
            "checkpoint": job.checkpoint.model_copy(update={"every": "2 steps"}),
        }
    )


def through_processes(
    job: Job,
    sizes: list[int],
    folder: Path,
    *,
    worker: "Worker | None" = None,
    say: Callable[[str], None] = lambda _line: None,
) -> "list[Check]":
    """Both histories in local processes; `worker` stands in for the second one's (a test plants faults with it)."""
    from planner.rehearsal.local_workers import LocalWorkers
    from planner.rehearsal.on_processes import rehearse, train_observed
    from planner.rehearsal.stages import Stage, stages
    from planner.train.setup import Launch

    steps = job.train.steps or 0
    fixed, history = folder / "fixed", folder / "history"
    with LocalWorkers(max(sizes)) as workers:
        start = [Stage(world_size=sizes[0], end_step=steps)]
        rehearse(workers, Launch(job=job, url=str(fixed)), start, train_observed, say)
        rehearse(workers, Launch(job=job, url=str(history)), stages(sizes, steps), worker or train_observed, say)
    return compare(job, fixed, history, sizes)


def through_nodes(job: Job, sizes: list[int], folder: Path, *, say: Callable[[str], None]) -> "list[Check]":
    """Both histories on embedded Ray clusters, one after the other."""
    from planner.dispatch.launch import new_launch
    from planner.rehearsal.on_ray import rehearse_on_ray
    from planner.rehearsal.stages import Stage, stages

    steps = job.train.steps or 0
    fixed, history = folder / "fixed", folder / "history"
    clipped = _sizes_on_ray(job, sizes)
    if clipped != sizes:
        say(f"no more workers than samples, and no size twice in a row: {' -> '.join(map(str, clipped))}")
    sizes = clipped
    workers = job.workers.model_copy(update={"min": 1, "max": max(sizes), "resources": {}})
    job = job.model_copy(update={"workers": workers})
    for url, parts in ((fixed, [Stage(world_size=sizes[0], end_step=steps)]), (history, stages(sizes, steps))):
        rehearse_on_ray(new_launch(job, str(url), frozenset()), parts, say)
    return compare(job, fixed, history, sizes)


def _sizes_on_ray(job: Job, sizes: list[int]) -> list[int]:
    """Ray never gets more workers than samples: they would only run ghosts.

    Raises:
        UserError: one size is left.
    """
    clipped = [size for size, _ in groupby(min(size, job.batch.global_batch) for size in sizes)]
    if len(clipped) == 1:
        raise UserError(
            f"batch.global is {job.batch.global_batch}: on Ray, all of these sizes are {clipped[0]} workers"
        )
    return clipped


def _print_dry_run(job: Job, sizes: list[int], *, as_json: bool) -> None:
    """The two histories and what would be compared, once the data has been opened."""
    import json

    from planner.data import model_files
    from planner.provenance.compare import compared
    from planner.provenance.identity import open_data
    from planner.rehearsal.stages import Stage, stages
    from planner.report.dry_run import NOTHING_DONE

    model_files.check_here(job)
    open_data(job)
    steps = job.train.steps or 0
    histories = {"fixed": [Stage(world_size=sizes[0], end_step=steps)], "history": stages(sizes, steps)}
    words = compared(job.batch.equality, job.train.precision)
    if as_json:
        parts = {name: [dataclasses.asdict(stage) for stage in each] for name, each in histories.items()}
        typer.echo(json.dumps({**parts, "equality": job.batch.equality, "compared": words}, indent=1))
        return
    for name, each in histories.items():
        parts_text = ", ".join(f"{counted(s.world_size, 'worker')} until step {s.end_step}" for s in each)
        typer.echo(f"{name:<8} {parts_text}")
    typer.echo(f"compared {', '.join(words)}\n\n{NOTHING_DONE}")


def compare(job: Job, fixed: Path, history: Path, sizes: list[int]) -> "list[Check]":
    """What two finished runs of the job have to show for themselves; the second went through `sizes`."""
    from planner.job import batch_sizes
    from planner.provenance.compare import check_forward_passes, check_sizes, compare_batches, compare_bitwise

    here, there = _trace(fixed), _trace(history)
    if job.batch.equality == "bitwise":
        checks = compare_bitwise(here, there)
    else:
        checks = [*compare_batches(here, there, job.train.precision), _compare_weights(job, fixed, history)]
    return [check_sizes(sizes, there), *checks, check_forward_passes(batch_sizes(job), here, there)]


def verdict(job: Job, checks: "list[Check]", sizes: list[int]) -> list[str]:
    """The checks line by line, and what they come to."""
    import torch

    lines = [f"{'ok ' if c.passed else 'NOT'}  {c.what:<16}  {c.words}" for c in checks]
    if not all(check.passed for check in checks):
        return [*lines, "verify: FAILED. World sizes change what this job trains"]
    where = f"on the CPU, {job.train.precision}, torch {torch.__version__}"
    path = f"{counted(job.train.steps or 0, 'step')} at {sizes[0]} = through {' -> '.join(map(str, sizes))} workers"
    if job.batch.equality == "bitwise":
        return [*lines, f"verify: IDENTICAL to the last bit: {path} ({where})"]
    return [*lines, f"verify: the same samples, and equal within rounding (batch.equality: batches): {path} ({where})"]


def _compare_weights(job: Job, fixed: Path, history: Path) -> "Check":
    """The final weights of both: only here are two of a tensor in memory."""
    from planner.provenance.compare import close_weights
    from planner.train.checkpoints.checkpoint import read

    commits = [(run.storage, run.manifest(run.commits()[-1])) for run in (_run(fixed), _run(history))]
    here, there = (read(storage, manifest, "model/") for storage, manifest in commits)
    distances = {
        name: (float((a.double() - b.double()).norm()), float(a.double().norm()))
        for (name, a), (_, b) in zip(here, there, strict=True)
    }
    return close_weights(distances, job.train.precision)


def _trace(path: Path) -> "Trace":
    from planner.provenance.compare import read_trace

    run = _run(path)
    return read_trace(run, run.storage.read_from("observed.jsonl", 0))


def _run(path: Path) -> "Run":
    from planner.store.run import Run
    from planner.store.storage import Storage

    return Run(Storage(str(path)))


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends workers and removes what is half done, as Ctrl-C does; also where SIGINT is ignored (`nohup`)."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="planner-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
