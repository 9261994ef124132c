"""`planner submit JOB`: sends `planner run` to a cluster. It needs only the address of the cluster's dashboard."""

import json
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.text import counted
from planner.base.version import VERSION
from planner.cli.activity import doing
from planner.cli.options import (
    RESUME_VARIABLE,
    AcceptOption,
    JobArgument,
    JsonOption,
    SetOption,
    console,
    warn_of_open_token,
)
from planner.errors import RunError
from planner.job import Job
from planner.provenance.identity import parse_accept
from planner.runner.job_argument import read_job
from planner.submit.shipment import Shipment, collect, mebibytes, require_lasting
from planner.submit.submission import Submission, dashboard_address, new_submission

if TYPE_CHECKING:
    from planner.submit.jobs_api import Ended, JobsApi


def submit(
    job: JobArgument,
    address: Annotated[
        str,
        typer.Option(
            envvar="RAY_API_SERVER_ADDRESS",
            show_default=False,
            metavar="URL",
            help="address of the cluster's dashboard, such as http://HOST:8265",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="show the job's log until it ends, and exit with its code")
    ] = False,
    set_: SetOption = None,
    accept: AcceptOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own messages in the log")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent, and send nothing")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send the job to a Ray cluster and train it there. The same command resumes it. Ctrl-C does not stop it.

    It sends this version of planner, the job file, and the data if its path is relative.
    Example: planner submit job.yaml --address http://HOST:8265 --follow
    """
    parse_accept(accept or [])
    spec = read_job(job, set_ or [])
    address = dashboard_address(address)
    require_lasting(spec)
    options = [*_repeated("--set", set_), *_repeated("--accept", accept), *(["--verbose"] if verbose else [])]
    again = ["planner", "submit", job, "--address", address, *(["--follow"] if follow else []), *options]
    resume = shlex.join(again)
    with doing("collecting the files"):
        shipment = collect(job, spec)
    submission = new_submission(address, spec, shipment, options, {RESUME_VARIABLE: resume})
    view = _View(spec, submission, resume, as_json=as_json)
    if dry_run:
        view.dry()
        return
    warn_of_open_token()
    with doing(f"connecting to {address}") as now:
        from planner.submit.jobs_api import JobsApi  # imports Ray, which a dry run does not need

        server = JobsApi.connect(address)
        now(f"sending {_contents(submission.shipment)}")
        server.submit(submission)
    if not follow:
        view.sent(server.ray_version)
        return
    view.following(server.ray_version)
    try:
        ended = view.follow(server)
    except KeyboardInterrupt:
        view.left()
        raise typer.Exit(130) from None
    if ended is None:
        view.left()
        raise RunError(f"{address}: the log broke off before the job ended")
    view.ended(ended)
    raise typer.Exit(ended.exit_code)


def _repeated(option: str, values: list[str] | None) -> list[str]:
    """Command-line arguments that repeat an option for each of the values."""
    return [argument for value in values or [] for argument in (option, value)]


class _View:
    """Prints a submission: text, or one JSON object with the log on stderr."""

    def __init__(self, job: Job, submission: Submission, resume: str, *, as_json: bool) -> None:
        self._job, self._submission, self._resume, self._as_json = job, submission, resume, as_json
        self._out = console()

    def dry(self) -> None:
        """Print what would be sent and where, and a command that does it without planner."""
        submission = self._submission
        if self._as_json:
            sent = {"files": sorted(submission.shipment.files), "bytes": submission.shipment.num_bytes}
            environment = {"entrypoint": submission.entrypoint, "env_vars": dict(submission.env)}
            self._json(**environment, **sent, by_hand=submission.command_by_hand)
            return
        self._say(f"{self._job.name}: would go to {submission.address}, with the run in {self._job.run_path}")
        self._say(f"  sent     {_contents(submission.shipment)}")
        self._say(f"  command  {submission.entrypoint}")
        self._say(f"  by hand  {submission.command_by_hand}")
        self._say("nothing was sent")

    def sent(self, ray_version: str) -> None:
        """Print that the job was sent, and the commands for its log, its end and its resume."""
        if self._as_json:
            self._json(**self._names())
            return
        self._opening(ray_version)
        self._commands(["log", "stop", "resume"])

    def following(self, ray_version: str) -> None:
        """Print that the job was sent, before its log follows."""
        if not self._as_json:
            self._opening(ray_version)
            self._say("The log follows. Ctrl-C leaves the job running.")

    def follow(self, server: "JobsApi") -> "Ended | None":
        """Print the log, unchanged, until the job has ended. None if the log broke off before.

        Before its first line, say that it is awaited.
        """
        with ExitStack() as waiting:
            waiting.enter_context(doing("waiting for the job's first line: the cluster starts it"))

            def show(text: str) -> None:
                waiting.close()
                typer.echo(text, nl=False, err=self._as_json)

            return server.follow(self._submission.submission_id, show)

    def left(self) -> None:
        """Print that the job still runs, after Ctrl-C or if its log broke off."""
        if self._as_json:
            self._json(**self._names(), status="RUNNING")
            return
        self._say(f"\n{self._submission.submission_id} is still running")
        self._commands(["log", "stop", "resume"])

    def ended(self, ended: "Ended") -> None:
        """Print how the job ended."""
        if self._as_json:
            self._json(**self._names(), status=ended.status, exit_code=ended.exit_code, reason=ended.reason)
            return
        reason = f" ({ended.reason})" if ended.reason else ""
        self._say(f"{self._submission.submission_id} {ended.status.lower()}{reason}")
        if ended.exit_code:
            self._commands(["resume"])

    def _opening(self, ray_version: str) -> None:
        submission = self._submission
        self._say(
            f"{self._job.name}: submitted to {submission.address} (Ray {ray_version}) as {submission.submission_id}"
        )
        self._say(f"  run      {self._job.run_path}")
        self._say(f"  sent     {_contents(submission.shipment)}")

    def _commands(self, names: list[str]) -> None:
        for name in names:
            self._say(f"  {name:<7}  {self._names()[name]}")

    def _names(self) -> dict[str, str]:
        submission = self._submission
        return {
            "submission_id": submission.submission_id,
            "address": submission.address,
            "run": self._job.run_path,
            "log": submission.log_command,
            "stop": submission.stop_command,
            "resume": self._resume,
        }

    def _say(self, line: str) -> None:
        self._out.print(line, soft_wrap=True)

    @staticmethod
    def _json(**found: Any) -> None:
        typer.echo(json.dumps(found, indent=1))


def _contents(shipment: Shipment) -> str:
    """What is sent, as text."""
    parts = [f"planner {VERSION}", shipment.job]
    if shipment.data:
        only = len(shipment.data) == 1
        parts.append(shipment.data[0] if only else counted(len(shipment.data), "data file"))
    return f"{', '.join(parts)}: {mebibytes(shipment.num_bytes)}"
