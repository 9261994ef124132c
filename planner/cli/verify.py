"""`planner verify JOB`: the proof that world sizes do not matter, on this machine, in real FSDP processes."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.counts import parse_history
from planner.cli.options import JobArgument, JsonOption, SetOption, console
from planner.errors import UserError
from planner.job import Job

if TYPE_CHECKING:
    from planner.store.run import Run
    from planner.train.rehearse import Worker
    from planner.verify import Check, Trace

# Real processes on one machine: more than these only wait for each other.
_MOST_WORKERS = 16


def verify(
    job: JobArgument,
    history: Annotated[
        str, typer.Option(metavar="SIZES", help="world sizes, one after another; the first is also the fixed one")
    ] = "4,3,5,1",
    steps: Annotated[int, typer.Option(min=1, help="optimizer steps, shared out over the history")] = 12,
    through_ray: Annotated[
        bool, typer.Option("--ray", help="on an embedded Ray cluster, whose nodes are killed and added, instead")
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the job twice, at a fixed size and through a history of sizes, and compare everything.

    With batch.equality: bitwise, every bit must agree; with batches, losses to a stated tolerance. Exits with 1 if not.
    """
    from planner.files import read_job

    sizes = parse_history(history, most=_MOST_WORKERS)
    if len(sizes) > steps:
        raise UserError(
            f"--history {history}: {len(sizes)} sizes do not fit into {steps} steps; write --steps {len(sizes)}"
        )
    spec = rehearsal_of(read_job(job, set_ or []), steps)
    out = console()
    if not as_json:
        how = " on Ray, nodes killed and added" if through_ray else ""
        out.print(f"{spec.name}: {steps} steps at {sizes[0]} workers, and again through {history}{how}", soft_wrap=True)
    with _scratch() as folder:
        checks = through_nodes(spec, sizes, folder) if through_ray else through_processes(spec, sizes, folder)
    passed = all(check.passed for check in checks)
    if as_json:
        import json

        rows = [{"what": c.what, "passed": c.passed, "words": c.words} for c in checks]
        typer.echo(json.dumps({"passed": passed, "equality": spec.batch.equality, "checks": rows}, indent=1))
    else:
        for line in verdict(spec, checks):
            out.print(line, soft_wrap=True)
    if not passed:
        raise typer.Exit(1)


def rehearsal_of(job: Job, steps: int) -> Job:
    """The job with so many steps, on the CPU, committing often enough that a lost node costs little."""
    from planner.dispatch.launch import absolute

    job = absolute(job, "")
    return job.model_copy(
        update={
            "train": job.train.model_copy(update={"steps": steps, "epochs": None}),
            "workers": job.workers.model_copy(update={"gpus": 0}),
            "checkpoint": job.checkpoint.model_copy(update={"every_steps": 2}),
        }
    )


def through_processes(job: Job, sizes: list[int], folder: Path, worker: "Worker | None" = None) -> "list[Check]":
    """Both histories in local processes; `worker` stands in for the second one's (a test plants faults with it)."""
    from planner.train.history import Stage, stages
    from planner.train.local import LocalWorkers
    from planner.train.rehearse import rehearse, train_observed
    from planner.train.setup import Launch

    steps = job.train.steps or 0
    fixed, history = folder / "fixed", folder / "history"
    with LocalWorkers(max(sizes)) as workers:
        start = [Stage(world_size=sizes[0], end_step=steps)]
        rehearse(workers, Launch(job=job, url=str(fixed)), start, train_observed)
        rehearse(workers, Launch(job=job, url=str(history)), stages(sizes, steps), worker or train_observed)
    return compare(job, fixed, history, sizes)


def through_nodes(job: Job, sizes: list[int], folder: Path) -> "list[Check]":
    """Both histories on embedded Ray clusters, one after the other."""
    from planner.dispatch.launch import new_launch
    from planner.dispatch.rehearsal import rehearse_on_ray
    from planner.train.history import Stage, stages

    steps = job.train.steps or 0
    fixed, history = folder / "fixed", folder / "history"
    # Ray never gets more workers than samples: they would only run ghosts.
    sizes = [min(size, job.batch.global_batch) for size in sizes]
    workers = job.workers.model_copy(update={"min": 1, "max": max(sizes), "resources": {}})
    job = job.model_copy(update={"workers": workers})
    for url, parts in ((fixed, [Stage(world_size=sizes[0], end_step=steps)]), (history, stages(sizes, steps))):
        rehearse_on_ray(new_launch(job, str(url), frozenset()), parts)
    return compare(job, fixed, history, sizes)


def compare(job: Job, fixed: Path, history: Path, sizes: list[int]) -> "list[Check]":
    """What two finished runs of the job have to show for themselves; the second went through `sizes`."""
    from planner.plan import batch_sizes
    from planner.verify import check_forward_passes, check_sizes, compare_batches, compare_bitwise

    here, there = _trace(fixed), _trace(history)
    if job.batch.equality == "bitwise":
        checks = compare_bitwise(here, there)
    else:
        checks = [*compare_batches(here, there, job.train.precision), _compare_weights(job, fixed, history)]
    return [check_sizes(sizes, there), *checks, check_forward_passes(batch_sizes(job), here, there)]


def verdict(job: Job, checks: "list[Check]") -> list[str]:
    """The checks line by line, and what they come to."""
    lines = [f"{'ok ' if c.passed else 'NOT'}  {c.what:<16}  {c.words}" for c in checks]
    if not all(check.passed for check in checks):
        return [*lines, "verify: FAILED. World sizes change what this job trains"]
    if job.batch.equality == "bitwise":
        return [*lines, "verify: IDENTICAL to the last bit"]
    return [*lines, "verify: the same samples, and losses equal within rounding (batch.equality: batches)"]


def _compare_weights(job: Job, fixed: Path, history: Path) -> "Check":
    """The final weights of both: only here are two of a tensor in memory."""
    from planner.train.checkpoint import read
    from planner.verify import close_weights

    commits = [(run.storage, run.manifest(run.commits()[-1])) for run in (_run(fixed), _run(history))]
    here, there = (read(storage, manifest, "model/") for storage, manifest in commits)
    distances = {
        name: (float((a.double() - b.double()).norm()), float(a.double().norm()))
        for (name, a), (_, b) in zip(here, there, strict=True)
    }
    return close_weights(distances, job.train.precision)


def _trace(path: Path) -> "Trace":
    from planner.verify import read_trace

    run = _run(path)
    return read_trace(run, run.storage.read_from("observed.jsonl", 0))


def _run(path: Path) -> "Run":
    from planner.store.run import Run
    from planner.store.storage import Storage

    return Run(Storage(str(path)))


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="planner-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
