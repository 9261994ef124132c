"""`planner track`: sends what a run's trackers lack, in the child process that also a driver uses."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable

from planner.base.disk import absolute_url
from planner.errors import RunError, StoreError, UserError
from planner.job import Job
from planner.runner.display import Say
from planner.runner.tracking_child import check_trackers, end_child, lines_of, start_child
from planner.store.lease import driver_state, newest_lease
from planner.store.run_folder import RunFolder, no_run_error
from planner.store.storage import Storage
from planner.store.survey import is_run, survey

_NO_ANSWER_S = 60.0
_LOOK_S = 2.0


def job_of_run(url: str, changed: Callable[[Job], Job] = lambda job: job) -> Job:
    """The newest job of a run, after `changed`, which may set other trackers.

    Raises:
        StoreError: there is no run, or its job cannot be read.
        UserError: the job has no trackers.
        TrackerUnavailable: the library of a tracker is not installed.
    """
    storage = Storage(url)
    if not is_run(storage):
        raise no_run_error(url)
    digest = survey(url).job_digest
    if not digest:
        raise StoreError(f"{url}: the run has no generation yet, so there is nothing to send")
    job = RunFolder(storage).job(digest)
    job = changed(job)
    if not job.tracking:
        raise UserError(f"{url}: its job names no trackers. Name one: planner track {url} --tracking tensorboard")
    check_trackers(job, url)
    return job


def track(job: Job, url: str, say: Say, *, follow: bool) -> None:
    """Send the final rows of a run to the trackers of a job.

    Args:
        job: its section `tracking` names the trackers.
        url: the run's folder.
        say: shows one line per tracker.
        follow: whether to go on while a driver runs the run. Ctrl-C ends it.

    Raises:
        RunError: a tracker does not have everything. `say` has shown the reason.
        KeyboardInterrupt: it was interrupted. What was sent stays.
    """
    url = absolute_url(url)
    is_over = not follow and not _may_run(url)
    process = start_child(job, url, {"limit_s": _NO_ANSWER_S, "is_patient": True, "is_over": is_over or follow})
    try:
        if follow:
            threading.Thread(target=_end_after_run, args=(process, url), name="planner-track", daemon=True).start()
        else:
            end_child(process)
        for line in lines_of(process):
            say(line)
    finally:
        end_child(process)
    if process.wait():
        raise RunError(f"{url}: not every tracker has all steps. Correct what is named above, and run it again")


def _end_after_run(process: "subprocess.Popen[bytes]", url: str) -> None:
    """Tell the child to end when no driver runs the run. A store that is away for a moment says nothing about it."""
    is_over = False
    while process.poll() is None and not is_over:
        with contextlib.suppress(StoreError):
            is_over = not _may_run(url)
        time.sleep(0 if is_over else _LOOK_S)
    end_child(process)


def _may_run(url: str) -> bool:
    """Whether a driver runs the run, or may run it on another machine."""
    return driver_state(newest_lease(Storage(os.fspath(url)))) in {"alive", "unknown"}
