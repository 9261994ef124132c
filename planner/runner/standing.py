"""What of a run is committed, by its folder alone."""

from planner.errors import NewerFormat, RecordMismatch, StoreError
from planner.store.records import Manifest
from planner.store.run import Run
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


def newest_readable(run: Run) -> Manifest | None:
    """The newest commit, by its manifest and the ledger's record of it; the workers check the files.

    Raises:
        NewerFormat: another version of planner wrote it.
        RecordMismatch: it is not the one that the ledger records.
        StoreError: there are manifests, and none can be read.
    """
    first: StoreError | None = None
    for name in reversed(run.commits()):
        try:
            manifest = run.manifest(name)
            run.require_recorded(name)
        except (NewerFormat, RecordMismatch):
            raise
        except StoreError as error:
            first = first or error
        else:
            return manifest
    if first is not None:
        raise first
    return None
