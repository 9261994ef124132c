"""Which step of a run is committed, in words, from the run's folder alone."""

from planner.store.newest import newest_readable
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def newest_commit_text(url: str, total_steps: int) -> str:
    """Which step of the run at `url` is committed, in words; `total_steps` is 0 if the caller does not know it.

    Raises:
        StoreError: the folder cannot be read.
    """
    return commit_text(newest_readable(RunFolder(Storage(url))), url, total_steps)


def commit_text(newest: Manifest | None, url: str, total_steps: int) -> str:
    """Which step the commit `newest` is of, in words. `newest` is None if the run has no commit."""
    if newest is None:
        return f"nothing was committed yet in {url}"
    return f"step {newest.step} of {total_steps or newest.total_steps} is committed in {url}"
