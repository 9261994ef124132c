"""The error that all workers raise when a commit fails on one of them."""

from planner.base.disk import no_room
from planner.errors import DiskFull, PlannerError, StaleGeneration, StoreError, TrainingFailed
from planner.store.run_folder import RunFolder, commit_name


def commit_error(
    error: Exception, run: RunFolder, *, step: int, generation: int, committed: str, state_bytes: int
) -> PlannerError:
    """The error for an exception of the threads that write a commit.

    Args:
        error: what was raised there.
        run: the run's folder.
        step: of the commit.
        generation: that commits.
        committed: the last durable commit, as text.
        state_bytes: of the whole state, which a full disk had no room for.
    """
    storage, full = run.storage, no_room(error)
    if full and not isinstance(error, DiskFull):
        error = DiskFull(storage.disk_full_text(full, "a commit", state_bytes))
    if isinstance(error, DiskFull):
        return DiskFull(f"step {step} cannot be committed (last commit: {committed}): {error}")
    if stale := _takeover(run, generation):
        return stale  # the other driver has removed the files that this one was writing
    if isinstance(error, PlannerError):
        return error
    place = storage.path(f"checkpoints/{commit_name(step, generation)}")
    return TrainingFailed(f"{place}: cannot save: {first_line(error)}")


def first_line(error: Exception) -> str:
    """The type of an exception and the first line of its text."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _takeover(run: RunFolder, generation: int) -> StaleGeneration | None:
    """The error to raise if another driver has taken over the run."""
    try:
        run.require_current(generation)
    except StaleGeneration as error:
        return error
    # A store that does not answer proves no takeover. Then the first error is the one to tell.
    except StoreError:
        return None
    return None
