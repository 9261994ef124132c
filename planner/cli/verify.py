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
        out.print(f"{spec.name}: {steps} steps at {sizes[0]} workers, and again through {history}", soft_wrap=True)
    with _scratch() as folder:
        checks = through_processes(spec, sizes, folder)
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
    from planner.plan import Facts, batch_sizes, choose
    from planner.train.local import LocalWorkers
    from planner.train.rehearse import Stage, rehearse, stages, train_observed
    from planner.train.setup import Launch
    from planner.verify import check_forward_passes

    steps = job.train.steps or 0
    parts = {"fixed": [Stage(world_size=sizes[0], end_step=steps)], "history": stages(sizes, steps)}
    planned, measured = [], []
    with LocalWorkers(max(sizes)) as workers:
        for name, stage_list in parts.items():
            run_worker = worker if worker and name == "history" else train_observed
            outcomes = rehearse(workers, Launch(job=job, url=str(folder / name)), stage_list, run_worker)
            start = 0
            for stage, by_rank in zip(stage_list, outcomes, strict=True):
                rounds = choose(batch_sizes(job), stage.world_size, Facts()).accumulation_steps
                planned += [(stage.end_step - start + o.repeated_steps) * rounds for o in by_rank]
                measured += [o.forward_passes for o in by_rank]
                start = stage.end_step
    return [*compare(job, folder / "fixed", folder / "history"), check_forward_passes(planned, measured)]


def compare(job: Job, fixed: Path, history: Path) -> "list[Check]":
    """What two finished runs of the job have to show for themselves."""
    from planner.verify import compare_batches, compare_bitwise

    here, there = _trace(fixed), _trace(history)
    if job.batch.equality == "bitwise":
        return compare_bitwise(here, there)
    return compare_batches(here, there, job.train.precision)


def verdict(job: Job, checks: "list[Check]") -> list[str]:
    """The checks line by line, and what they come to."""
    lines = [f"{'ok ' if c.passed else 'NOT'}  {c.what:<16}  {c.words}" for c in checks]
    if not all(check.passed for check in checks):
        return [*lines, "verify: FAILED. World sizes change what this job trains"]
    if job.batch.equality == "bitwise":
        return [*lines, "verify: IDENTICAL to the last bit"]
    return [*lines, "verify: the same samples, and losses equal within rounding (batch.equality: batches)"]


def _trace(path: Path) -> "Trace":
    from planner.store.run import Run
    from planner.store.storage import Storage
    from planner.verify import read_trace

    run = Run(Storage(str(path)))
    return read_trace(run, run.storage.read_from("observed.jsonl", 0))


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="planner-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
