"""`planner verify JOB`: checks that world sizes do not change training, with real FSDP processes on this machine."""

import dataclasses
import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from planner.base.text import counted
from planner.cli.activity import doing
from planner.cli.counts import parse_history
from planner.cli.options import DryRunOption, JobArgument, JsonOption, SetOption, console, terminal_width
from planner.data.job_paths import require_paths
from planner.errors import UserError
from planner.job import Job
from planner.provenance.compare import Check
from planner.provenance.split_randomness import outcome
from planner.report.dry_run_text import NOTHING_DONE
from planner.report.text_columns import hanging
from planner.runner.job_argument import read_job
from planner.runner.signals import ended_like_ctrl_c
from planner.runner.verify_job import histories, rehearsal_of
from planner.runner.verify_job import verify as verify_job

# More processes on one machine would only wait for each other.
_MOST_WORKERS = 16
_NOT_COMPARED = (
    "verify: NOT COMPARED. The steps draw random numbers that depend on the split over workers, so the difference says "
    "nothing about the job. Turn them off for the comparison, or use --set batch.equality=bitwise, where they do not "
    "depend on it (it does not notice a mean in place of a sum)"
)


def verify(
    job: JobArgument,
    history: Annotated[
        str, typer.Option(metavar="SIZES", help="world sizes in order (the first is also that of the fixed run)")
    ] = "4,3,5,1",
    steps: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="steps of each run instead of train.steps, shared out over the sizes"),
    ] = 12,
    through_ray: Annotated[
        bool, typer.Option("--ray", help="use an embedded Ray cluster, whose nodes join, get notice and die")
    ] = False,
    on_gpus: Annotated[
        bool,
        typer.Option(
            "--gpu", help="train on this machine's GPUs. With fewer GPUs than workers, all share the first (slow)"
        ),
    ] = False,
    set_: SetOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the job twice, at one world size and through several, and compare the two runs.

    With batch.equality: bitwise, every bit must agree.
    With balanced, losses must agree to a stated tolerance, both without dropout, whose masks depend on the world size.
    Exits with 1 if they do not, or cannot be compared.
    It runs on the CPU, or with --gpu on GPUs.
    Example: planner verify job.yaml --history 4,3,5,1
    """
    sizes = _sizes(history, steps)
    if on_gpus and through_ray:
        raise UserError("--gpu trains in local processes. Leave out --ray")
    written = read_job(job, set_ or [])
    require_paths(written, job, "verify")
    spec = rehearsal_of(written, steps, on_gpus=on_gpus)
    if dry_run:
        _print_dry_run(spec, sizes, through_ray=through_ray, as_json=as_json)
        return
    out = console()
    if not as_json:
        how = " on Ray, whose nodes join, get notice and die" if through_ray else ""
        path = " -> ".join(map(str, sizes))
        what = f"{counted(steps, 'step')} at {counted(sizes[0], 'worker')}, and again through {path}"
        out.print(f"{spec.name}: {what}{how}", soft_wrap=True)
    began_s = time.monotonic()

    def say(line: str) -> None:
        if not as_json:
            out.print(f"{time.monotonic() - began_s:5.0f} s  {line}", soft_wrap=True)

    with ended_like_ctrl_c(), doing("starting the workers", None if as_json else out) as now:
        checks = verify_job(spec, sizes, through_ray=through_ray, on_gpus=on_gpus, say=say, now=now)
    if as_json:
        typer.echo(as_json_text(spec, checks, on_gpus=on_gpus))
    else:
        for line in verdict(spec, checks, sizes, on_gpus=on_gpus):
            out.print(line, soft_wrap=True)
    if outcome(checks) != "equal":
        raise typer.Exit(1)


def _sizes(history: str, steps: int) -> list[int]:
    sizes = parse_history(history, most=_MOST_WORKERS)
    if len(set(sizes)) == 1:
        other = 2 if sizes[0] == 1 else 1
        raise UserError(
            f"--history {history}: one size proves nothing. Write two different sizes, such as {sizes[0]},{other}"
        )
    if len(sizes) > steps:
        raise UserError(
            f"--history {history}: {len(sizes)} sizes do not fit into {steps} steps. Write --steps {len(sizes)}"
        )
    return sizes


def _print_dry_run(spec: Job, sizes: list[int], *, through_ray: bool, as_json: bool) -> None:
    """Print the two histories and what would be compared."""
    with doing("checking the model and the data"):
        found = histories(spec, sizes, through_ray=through_ray)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=1))
        return
    for name, parts in (("fixed", found.fixed), ("history", found.history)):
        text = ", ".join(f"{counted(stage.world_size, 'worker')} until step {stage.end_step}" for stage in parts)
        typer.echo(f"{name:<8} {text}")
    lines = hanging("compare  ", ", ".join(found.compared), terminal_width())
    typer.echo("\n".join([*lines, "", NOTHING_DONE]))


def as_json_text(job: Job, checks: Sequence[Check], *, on_gpus: bool) -> str:
    """What `--json` prints."""
    result = outcome(checks)
    found = {
        "passed": result == "equal",
        "outcome": result,
        "equality": job.batch.equality,
        "device": "cuda" if on_gpus else "cpu",
        "checks": [{"what": check.what, "passed": check.passed, "words": check.detail} for check in checks],
    }
    return json.dumps(found, indent=1)


def verdict(job: Job, checks: Sequence[Check], sizes: Sequence[int], *, on_gpus: bool = False) -> list[str]:
    """A line per check, and the verdict."""
    result = outcome(checks)
    other = "?  " if result == "not compared" else "NOT"
    lines = [f"{'ok ' if c.passed else other}  {c.what:<16}  {c.detail}" for c in checks]
    if result == "not compared":
        return [*lines, _NOT_COMPARED]
    if result == "different":
        return [*lines, "verify: FAILED. World sizes change what this job trains"]
    where = f"on {'GPUs' if on_gpus else 'the CPU'}, {job.train.precision}, torch {version('torch')}"
    path = f"{counted(job.train.steps or 0, 'step')} at {sizes[0]} = through {' -> '.join(map(str, sizes))} workers"
    if job.batch.equality == "bitwise":
        return [*lines, f"verify: IDENTICAL to the last bit: {path} ({where})"]
    equal = "without dropout equal" if any(check.what == "dropout" for check in checks) else "equal"
    return [
        *lines,
        f"verify: the same samples, and {equal} within rounding (batch.equality: balanced): {path} ({where})",
    ]
