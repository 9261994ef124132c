"""Every error that a user can meet.

PlannerError              what it says is for the user: no traceback, a non-zero exit
+-- UserError             the input is wrong (exit code 2)
|   +-- JobError          a job file
|   +-- ClusterError      a cluster file
|   +-- RecipeError       another system's recipe
|   +-- PlanError         batch sizes or a world size that no plan can serve
|   +-- DataError         a data set
|   +-- ObjectiveError    an objective that is not installed, or whose package cannot be used
+-- NotExact              another system cannot train this batch at that count (exit code 1)
+-- RunError              the run cannot go on (exit code 1)
    +-- StoreError        the run directory: unreachable, torn, foreign
    |   +-- StaleGeneration   another driver has taken the run over
    |   +-- NewerFormat       another version of planner wrote it
    |   +-- RecordMismatch    a commit is not the one that the ledger records
    |   +-- DiskFull          no room is left where it lies
    +-- AnotherDriver     the run is another driver's, from the start or since it was taken over
    +-- ResumeRefused     what the job says now is not what the run was made with
    +-- ClusterLost       the Ray cluster ended under the run
    +-- TrainingFailed    training stopped and will not go on by itself
"""

from collections.abc import Sequence

# `... and 1048576 more`; and what a line is not shortened below.
_MAX_REST, _MIN_LINE = 24, 90

MAX_CHARS = 500
"""of a message about a file or a folder: a stranger may have written names of megabytes into it"""


def printable(text: str) -> str:
    """The text with control characters and lone surrogates as escapes. Line breaks stay."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def shortened(text: str, most: int = MAX_CHARS) -> str:
    """At most `most` characters. A longer text loses its middle: the advice is at its end."""
    if len(text) <= most:
        return text
    after = (most - 5) // 3
    return f"{text[: most - 5 - after]} ... {text[-after:]}"


def lines_within(lines: Sequence[str], count: int, most: int = MAX_CHARS, indent: str = "") -> list[str]:
    """As many lines as fit into `most` characters, the longest ones shortened.

    If fewer than `count` lines fit, a last line says how many are left out.
    """
    room = most - _MAX_REST
    kept = list(lines)
    while len(kept) > 1 and _size(kept, _MIN_LINE) > room:
        kept.pop()
    length = next(n for n in range(max(room, _MIN_LINE), 0, -1) if n == 1 or _size(kept, n) <= room)
    shown = [shortened(line, length) for line in kept]
    return [*shown, f"{indent}... and {count - len(kept)} more"] if count > len(kept) else shown


def _size(lines: Sequence[str], most: int) -> int:
    """Characters of the lines and their ends, each line at most so long."""
    return sum(min(len(line), most) + 1 for line in lines)


class PlannerError(Exception):
    """A sentence for the user: what, with which numbers, and what to do. It prints on any terminal."""

    exit_code = 1
    max_chars = 100_000

    def __init__(self, text: str = "") -> None:
        # Shortened twice: first to escape no more than can be shown, then because escapes are longer.
        super().__init__(shortened(printable(shortened(text, self.max_chars)), self.max_chars))


class UserError(PlannerError):
    """The input is wrong; nothing was started."""

    exit_code = 2
    max_chars = MAX_CHARS


class JobError(UserError):
    """A job file is wrong. The message has one line per mistake."""


class ObjectiveError(UserError, ValueError):
    """An objective is not installed, or its package cannot be used.

    A ValueError, so that pydantic lists it among the mistakes of a job.
    """


class ClusterError(UserError):
    """A cluster file is wrong, or not one. The message has one line per mistake."""


class RecipeError(UserError):
    """Another system's recipe is wrong, or does not say enough. The message has one line per mistake."""


class PlanError(UserError):
    """No plan serves these numbers."""


class DataError(UserError):
    """The data set cannot be read, or is too small for what is asked of it."""


class NotExact(PlannerError):
    """Another system has no setting that trains exactly this batch at that GPU count."""


class RunError(PlannerError):
    """The run cannot go on."""


class StoreError(RunError):
    """The run directory cannot be reached, or what lies there cannot be trusted."""

    max_chars = MAX_CHARS


class StaleGeneration(StoreError):
    """A newer generation has claimed the run; this one must not commit."""


class NewerFormat(StoreError):
    """What lies there is whole, but of a format that this version of planner does not read."""


class RecordMismatch(StoreError):
    """A commit's manifest is valid but is not the one that the ledger records: somebody replaced it."""


class DiskFull(StoreError):
    """No room is left where the run lies; what was committed stays."""


class AnotherDriver(RunError):
    """Another driver holds the run, or has taken it over meanwhile; this one must not go on."""


class ResumeRefused(RunError):
    """The job's identity (global batch, seed, data, model, optimizer) differs from the run's."""


class ClusterLost(RunError):
    """The Ray cluster ended under the run; the same command resumes it on another one."""


class TrainingFailed(RunError):
    """Training stopped for a reason that trying again would not mend."""
