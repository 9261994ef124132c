"""Texts that name the newest commit of a run. They need only the run's folder."""

from planner.store.newest import newest_commit
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def newest_commit_text(url: str, total_steps: int) -> str:
    """Read the run at `url` and return a text such as `step 8 of 60 is committed in runs/demo`.

    Args:
        url: the run's folder.
        total_steps: of the job, or 0 if the caller does not know it.

    Raises:
        StoreError: the folder cannot be read.
    """
    return commit_text(newest_commit(RunFolder(Storage(url))).manifest, url, total_steps)


def commit_text(newest: Manifest | None, url: str, total_steps: int) -> str:
    """Return a text such as `step 8 of 60 is committed in runs/demo`. `newest` is None if the run has no commit."""
    if newest is None:
        return f"nothing was committed yet in {url}"
    return f"step {newest.step} of {total_steps or newest.total_steps} is committed in {url}"
