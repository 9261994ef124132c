"""`planner.run`: the Python form of `planner run`."""

import os
import shlex
import threading
from collections.abc import Iterable

from planner.errors import UserError
from planner.job import Job
from planner.provenance.identity import parse_accept
from planner.runner import execute
from planner.runner.display import Say, lines_only, silent
from planner.runner.execute import RunResult
from planner.runner.job_argument import AnyJob, as_job
from planner.runner.local import where
from planner.runner.start import plan_start


def run(
    job: AnyJob,
    address: str | None = None,
    *,
    nodes: int = 0,
    accept: Iterable[str] = (),
    verbose: bool = False,
    say: Say = silent,
) -> RunResult:
    """Train the job, or resume its run from the newest commit. Call it in the main thread.

    On Ctrl-C or SIGTERM the workers commit, this call returns, and the result's `finished` is False. It sets
    environment variables that Ray reads, so call it before anything imports ray.

    Args:
        job: a job, or the path of its file.
        address: of a Ray cluster. None takes the variable RAY_ADDRESS. Without an address, a local cluster starts.
        nodes: logical nodes of the local cluster, or 0 for as many as the run uses, at most one per core or GPU.
        accept: changes of the run's job to accept (data, seed, recipe, ...), as with `--accept`.
        verbose: whether Ray's own messages are shown.
        say: called with each line about the start, resizes and notices. Steps are in the run's ledger.

    Raises:
        PlannerError: in all cases where `planner run` exits with a code other than 0, except after Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UserError("planner.run was called in another thread. Call it in the main thread, which gets the signals")
    address = os.environ.get("RAY_ADDRESS", "") if address is None else address
    fields, display = parse_accept(accept), lines_only(say, verbose=verbose)
    start = plan_start(
        as_job(job),
        where(address, nodes),
        accept=fields,
        display=display,
        resume_command=_resume_command(job, address, nodes, sorted(fields)),
        file="" if isinstance(job, Job) else os.fspath(job),
    )
    return execute.run(start, display)


def _resume_command(job: AnyJob, address: str, nodes: int, accept: Iterable[str]) -> str:
    """What resumes the run: a command if the job has a file, else the same Python call."""
    if isinstance(job, Job):
        return "planner.run(job)"
    return resume_command(os.fspath(job), address=address, nodes=nodes, overrides=(), accept=accept)


def resume_command(file: str, *, address: str, nodes: int, overrides: Iterable[str], accept: Iterable[str]) -> str:
    """The `planner run` command that resumes a job's file, quoted for a shell."""
    arguments = ["planner", "run", file]
    arguments += ["--address", address] if address else []
    arguments += ["--nodes", str(nodes)] if nodes else []
    arguments += [argument for override in overrides for argument in ("--set", override)]
    arguments += [argument for field in accept for argument in ("--accept", field)]
    return shlex.join(arguments)
