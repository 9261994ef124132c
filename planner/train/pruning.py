"""Removes the files of old commits in the background. Only rank 0 does it.

A failure ends no run, because nothing is lost but room: the ledger has a note, and the next commit tries it again.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from planner.errors import PlannerError, StoreError
from planner.store.run_folder import RunFolder
from planner.train.background import BackgroundWork
from planner.train.commit_errors import first_line


class Pruning:
    """What is being removed now. The training thread calls all methods.

    Args:
        run: the run's folder.
        keep: how many of the newest commits keep their files.
        generation: the one that commits.
        note: writes a message into the ledger.
    """

    def __init__(self, run: RunFolder, *, keep: int, generation: int, note: Callable[[str], None]) -> None:
        self._run, self._keep, self._generation, self._note = run, keep, generation, note
        self._work: BackgroundWork[bool] | None = None
        self._noted = ""

    def begin(self, step: int) -> None:
        """Begin to remove files, now that step `step` is durable. Nothing if an earlier removal still goes on."""
        self.advance()
        if self._work is None:
            self._work = BackgroundWork(self._prune, partial(_failure, step))

    def advance(self) -> None:
        """Note why files could not be removed, once for each reason. Does not wait."""
        if self._work is None or not self._work.has_ended:
            return
        failure, self._work = self._work.failure, None
        reason = str(failure.__cause__) if failure else ""
        if failure and reason != self._noted:
            self._note(str(failure))
        self._noted = reason

    def finish(self) -> None:
        """Wait until the files are removed. A failure is noted."""
        if self._work is not None:
            with suppress(PlannerError):  # `advance` notes it
                self._work.result()
        self.advance()

    def _prune(self, _on_piece: Callable[[], None]) -> bool:
        self._run.prune(self._keep, self._generation)
        return True


def _failure(step: int, error: Exception) -> PlannerError:
    reason = str(error) if isinstance(error, PlannerError) else first_line(error)
    failure = StoreError(
        f"step {step} is durable, but files of older commits could not be removed: {reason}. "
        "This is tried again after the next commit"
    )
    failure.__cause__ = error
    return failure
