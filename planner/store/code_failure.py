"""`failure.json`: the last error of the user's own code in a run, with its whole traceback, for people only.

Nothing that trains, resumes or audits reads it. A worker writes it before its group ends, so it is there after the run,
also if no generation had a ledger yet.
"""

import contextlib
import time
from typing import Annotated, ClassVar, Self

from pydantic import Field

from planner.base.format_versions import STORED
from planner.base.user_errors import MAX_TRACEBACK_CHARS
from planner.errors import MAX_CHARS, StoreError
from planner.store.records import Sealed, seal, unseal_if_whole
from planner.store.storage import Storage

FAILURE_FILE = "failure.json"


class CodeFailure(Sealed):
    """An error of the user's code."""

    stored_as: ClassVar[str] = "failure"

    format: int = STORED["failure"]
    launch: str
    """id of the driver's launch"""
    time_s: float
    """in seconds since the epoch"""
    text: Annotated[str, Field(max_length=2 * MAX_CHARS)]
    """what failed, with the error's type, message, file and line"""
    traceback: Annotated[str, Field(max_length=2 * MAX_TRACEBACK_CHARS)]

    @classmethod
    def now(cls, launch: str, text: str, traceback: str) -> Self:
        """A failure of this moment, cut to what a file may hold."""
        return cls(
            launch=launch,
            time_s=time.time(),
            text=text[: 2 * MAX_CHARS],
            traceback=traceback[: 2 * MAX_TRACEBACK_CHARS],
        )


def keep_failure(storage: Storage, failure: CodeFailure) -> None:
    """Write it in place of the one before. A store that does not answer is ignored: the run says the text, too."""
    with contextlib.suppress(StoreError):
        storage.write(FAILURE_FILE, seal(failure))


def read_failure(storage: Storage) -> CodeFailure | None:
    """The last failure of a run. None if there is none, or if it cannot be read.

    Raises:
        StoreError: the store does not answer.
    """
    return unseal_if_whole(storage.read_first(FAILURE_FILE, 2**20), CodeFailure, FAILURE_FILE)
