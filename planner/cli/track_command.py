"""`planner track RUN`: sends what a run's trackers lack."""

from contextlib import nullcontext
from typing import Annotated

import typer

from planner.base.disk import absolute_url
from planner.cli.activity import doing
from planner.cli.options import RunArgument
from planner.files import dump_job, parse_job
from planner.job import Job
from planner.runner.track_run import job_of_run
from planner.runner.track_run import track as track_run


def track(
    run: RunArgument,
    tracking: Annotated[
        list[str] | None,
        typer.Option(
            "--tracking",
            metavar="TRACKER",
            help="in place of the job's: tensorboard or '{kind: wandb, project: mine}' (may be repeated)",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="go on while the run is trained (Ctrl-C ends this command alone)")
    ] = False,
) -> None:
    """Send the steps that a run's trackers lack: after a server was down, or to one that its job does not name.

    A step that a tracker has is not sent again. Exits with 1 if a tracker could not get everything.
    Example: planner track runs/my-run --tracking tensorboard
    """
    url = absolute_url(run)
    job = job_of_run(url, lambda job: _with_trackers(job, tracking or []))
    with nullcontext() if follow else doing("sending steps to the trackers"):
        track_run(job, url, typer.echo, follow=follow)


def _with_trackers(job: Job, trackers: list[str]) -> Job:
    """The job with these trackers, read as in a job file. Unchanged if there are none.

    Raises:
        JobError: a tracker is wrong.
    """
    if not trackers:
        return job
    return parse_job(dump_job(job), source="--tracking", overrides=[f"tracking=[{', '.join(trackers)}]"])
