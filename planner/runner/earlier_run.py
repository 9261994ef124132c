"""The checks of a start that goes on from an earlier run (`after`), before a cluster is started."""

from planner.job import HfModel, Job
from planner.provenance.stage import earlier_commit, needed_again, pinned, unchanged_note
from planner.store.records import Manifest


def begun_after(job: Job, committed: Manifest | None, accept: frozenset[str]) -> Job:
    """The job with the commit that its `after` stands for. For a new run, that commit and its model are checked.

    Args:
        job: with absolute paths.
        committed: the newest commit of its run. None for a new run.
        accept: the fields of the run's identity that may change.

    Raises:
        PlannerError: there is no such commit, or it does not suit the job.
    """
    job = pinned(job, committed, accept)
    if committed is None:
        _check(job)
    return job


def resumed_after(job: Job) -> str:
    """Check the earlier run of a run that resumes. Returns what could not be checked, or empty.

    Raises:
        PlannerError: another run is there now, or it is not there and every generation needs it.
    """
    note = unchanged_note(job)
    if not needed_again(job):
        return note
    _check(job)
    return ""


def _check(job: Job) -> None:
    if job.after is None:
        return
    from planner.train.earlier_weights import require_suits, seen_folder  # torch

    folder = seen_folder(job.model) if isinstance(job.model, HfModel) else None
    require_suits(job, folder, earlier_commit(job, needed_again(job) or "the first weights"))
