"""`planner submit JOB`: `planner run`, on a cluster that is reached by its dashboard's address alone."""

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.text import counted
from planner.base.version import VERSION
from planner.cli.options import (
    RESUME_VARIABLE,
    AcceptOption,
    JobArgument,
    JsonOption,
    SetOption,
    console,
    warn_of_open_token,
)
from planner.job import Job
from planner.runner.accept import parse_accept
from planner.runner.job_file import read_job
from planner.submit.shipment import Shipment, collect, mebibytes, require_lasting
from planner.submit.submission import Submission, dashboard_address, new_submission

if TYPE_CHECKING:
    from planner.submit.job_server import Ended


def submit(
    job: JobArgument,
    address: Annotated[
        str,
        typer.Option(
            envvar="RAY_API_SERVER_ADDRESS",
            show_default=False,
            help="the cluster's dashboard, such as http://HOST:8265",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="show the job's log until it ends, and exit with its code")
    ] = False,
    set_: SetOption = None,
    accept: AcceptOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Ray's own messages in the log, too")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent, and send nothing")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send the job to a Ray cluster and train it there. The same command resumes it. Ctrl-C does not stop it.

    What is sent: this planner, the job file, and the data if its path is relative.
    """
    parse_accept(accept or [])
    spec = read_job(job, set_ or [])
    address = dashboard_address(address)
    require_lasting(spec)
    options = [*_repeated("--set", set_), *_repeated("--accept", accept), *(["--verbose"] if verbose else [])]
    again = ["planner", "submit", job, "--address", address, *(["--follow"] if follow else []), *options]
    resume = shlex.join(again)
    submission = new_submission(address, spec, collect(job, spec), options, {RESUME_VARIABLE: resume})
    view = _View(spec, submission, resume, as_json=as_json)
    if dry_run:
        view.dry()
        return
    from planner.submit.job_server import JobServer  # Ray, and HTTP: not for a dry run

    warn_of_open_token()
    server = JobServer.connect(address)
    server.submit(submission)
    if not follow:
        view.sent(server.ray_version)
        return
    view.following(server.ray_version)
    try:
        ended = server.follow(submission.submission_id, view.show)
    except KeyboardInterrupt:
        view.left()
        raise typer.Exit(130) from None
    view.ended(ended)
    raise typer.Exit(ended.exit_code)


def _repeated(option: str, values: list[str] | None) -> list[str]:
    """The words of a command line that give an option these values."""
    return [word for value in values or [] for word in (option, value)]


class _View:
    """What the terminal shows of a submission: sentences, or one JSON object with the log on stderr."""

    def __init__(self, job: Job, submission: Submission, resume: str, *, as_json: bool) -> None:
        self._job = job
        self._submission = submission
        self._resume = resume
        self._as_json = as_json
        self._out = console()

    def dry(self) -> None:
        """What would be sent, where, and how to do it by hand."""
        submission = self._submission
        if self._as_json:
            sent = {"files": sorted(submission.shipment.files), "bytes": submission.shipment.num_bytes}
            environment = {"entrypoint": submission.entrypoint, "env_vars": dict(submission.env)}
            self._json(**environment, **sent, by_hand=submission.command_by_hand)
            return
        self._say(f"{self._job.name}: would go to {submission.address}; the run: {self._job.run_path}")
        self._say(f"  sent     {_contents(submission.shipment)}")
        self._say(f"  command  {submission.entrypoint}")
        self._say(f"  by hand  {submission.command_by_hand}")
        self._say("nothing was sent")

    def sent(self, ray_version: str) -> None:
        """It is on its way."""
        if self._as_json:
            self._json(**self._names())
            return
        self._opening(ray_version)
        self._commands(["log", "stop", "resume"])

    def following(self, ray_version: str) -> None:
        """It is on its way, and its log comes next."""
        if not self._as_json:
            self._opening(ray_version)
            self._say("its log; Ctrl-C leaves the job running:")

    def show(self, text: str) -> None:
        """A part of the log, as it is."""
        typer.echo(text, nl=False, err=self._as_json)

    def left(self) -> None:
        """The user has gone, the job has not."""
        if self._as_json:
            self._json(**self._names(), status="RUNNING")
            return
        self._say(f"\n{self._submission.submission_id} runs on")
        self._commands(["log", "stop", "resume"])

    def ended(self, ended: "Ended") -> None:
        """How it ended."""
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
    """What goes along, in words."""
    parts = [f"planner {VERSION}", shipment.job]
    if shipment.data:
        only = len(shipment.data) == 1
        parts.append(shipment.data[0] if only else counted(len(shipment.data), "data file"))
    return f"{', '.join(parts)}: {mebibytes(shipment.num_bytes)}"
