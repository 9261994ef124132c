"""What of a run is committed, by its folder alone."""

from planner.store.newest import newest_readable
from planner.store.records import Manifest
from planner.store.run_folder import Run
from planner.store.storage import Storage


def standing(url: str, total_steps: int) -> str:
    """Which step of the run at `url` is committed, in words; `total_steps` is 0 if the caller does not know it.

    Raises:
        StoreError: the folder cannot be read.
    """
    return standing_words(newest_readable(Run(Storage(url))), url, total_steps)


def standing_words(newest: Manifest | None, url: str, total_steps: int) -> str:
    """The same of a commit that has been read already; none if there is none."""
    if newest is None:
        return f"nothing was committed yet in {url}"
    return f"step {newest.step} of {total_steps or newest.total_steps} is committed in {url}"
