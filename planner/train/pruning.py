"""Removes the files of old commits in the background. Only rank 0 does it.

A failure ends no run, because nothing is lost but room: the ledger has a note, and the next commit tries it again.
"""

from collections.abc import Callable
from contextlib import suppress

from planner.errors import PlannerError, StoreError
from planner.events.event import Event
from planner.events.saves import OldFilesLeft
from planner.store.run_folder import RunFolder
from planner.train.background import BackgroundWork
from planner.train.commit_errors import first_line


class Pruning:
    """What is being removed now. The training thread calls all methods.

    Args:
        run: the run's folder.
        keep: how many of the newest commits keep their files.
        generation: the one that commits.
        note: writes an event into the ledger.
    """

    def __init__(self, run: RunFolder, *, keep: int, generation: int, note: Callable[[Event], None]) -> None:
        self._run, self._keep, self._generation, self._note = run, keep, generation, note
        self._work: BackgroundWork[bool] | None = None
        self._step, self._noted = 0, ""

    def begin(self, step: int) -> None:
        """Begin to remove files, now that step `step` is durable. Nothing if an earlier removal still goes on."""
        self.advance()
        if self._work is None:
            self._step = step
            self._work = BackgroundWork(self._prune, _failure)

    def advance(self) -> None:
        """Note why files could not be removed, once for each reason. Does not wait."""
        if self._work is None or not self._work.has_ended:
            return
        failure, self._work = self._work.failure, None
        reason = str(failure) if failure else ""
        if reason not in ("", self._noted):
            self._note(OldFilesLeft(step=self._step, reason=reason))
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


def _failure(error: Exception) -> PlannerError:
    return error if isinstance(error, PlannerError) else StoreError(first_line(error))
