"""Every error that a user can meet.

PlannerError                  the message is for the user: no traceback, a non-zero exit code
+-- UserError                 the input is wrong (exit code 2)
|   +-- JobError              a job file
|   +-- ClusterError          a cluster file
|   +-- RecipeError           another system's recipe
|   +-- PlanError             no plan serves these batch sizes or this world size
|   +-- DataError             a data set
|   +-- ObjectiveUnavailable  an objective is not installed, or its package cannot be used
|   +-- TrackerUnavailable    a tracker or its library is not installed, or its package cannot be used
+-- NoExactSplit              another system cannot train exactly this batch at that GPU count (exit code 1)
+-- RunError                  the run cannot continue (exit code 1)
    +-- StoreError            the run's folder is unreachable, torn or of another run
    |   +-- StaleGeneration   another driver has taken over the run
    |   +-- NewerFormat       another version of planner wrote it
    |   +-- ManifestMismatch  a commit is not the one that the ledger records
    |   +-- Unreachable       the storage refuses or does not answer, so what is there may be whole
    |   +-- DiskFull          the disk of the run's folder is full
    +-- AnotherDriver         another driver runs the run, or has taken it over
    +-- ResumeRefused         the job differs from the one that the run was made with
    +-- ClusterUnreachable    no Ray cluster answers at the address
    +-- ClusterLost           the Ray cluster ended during the run
    +-- TrainingFailed        training stopped, and a retry would fail in the same way
"""

from collections.abc import Sequence

# The length of `... and 1048576 more`. How far a cut moves to fall between two words.
_MAX_REST, _MAX_WORD = 24, 30
# A first line is shortened to no less than this, so that the line after it is shown.
_MIN_FIRST = 200

MAX_CHARS = 500
"""of a message about a file or a folder, because an untrusted file may hold names of several megabytes"""


def printable(text: str) -> str:
    """Return the text on one line: control characters, line breaks and lone surrogates as Python escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """Return the text with each of its lines `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def shortened(text: str, most: int = MAX_CHARS) -> str:
    """Return at most `most` characters of a text. A longer text loses its middle, because the advice is at its end.

    No word is cut, except one of more than 30 characters.
    """
    if len(text) <= most:
        return text
    after = (most - 5) // 3
    head, tail = text[: most - 5 - after], text[-after:]
    if " " in head[-_MAX_WORD:]:
        head = head.rpartition(" ")[0]
    if " " in tail[:_MAX_WORD]:
        tail = tail.partition(" ")[2]
    return f"{head} ... {tail}"


def lines_within(lines: Sequence[str], count: int, most: int = MAX_CHARS, indent: str = "") -> list[str]:
    """Return as many whole lines as fit into `most` characters. Only the first line may be shortened.

    If fewer than `count` lines fit, the last line says how many are left out.
    """
    kept, room = list(lines), most if count == len(lines) else most - _MAX_REST
    while len(kept) > 1 and _length(kept) - 1 > room:
        if len(kept) == 2 and room - _length(kept[1:]) >= _MIN_FIRST:
            break
        kept.pop()
        room = most - _MAX_REST
    shown = [shortened(kept[0], room - _length(kept[1:])), *kept[1:]] if kept else []
    return [*shown, f"{indent}... and {count - len(kept)} more"] if count > len(kept) else shown


def _length(lines: Sequence[str]) -> int:
    """Characters of the lines, with a line break after each."""
    return sum(len(line) + 1 for line in lines)


class PlannerError(Exception):
    """A message for the user: what happened, with the numbers, and what to do. It prints on any terminal."""

    exit_code = 1
    max_chars = 100_000
    code_traceback = ""
    """the whole traceback, if code that the user wrote raised an error. Bounded and printable"""

    def __init__(self, text: str = "") -> None:
        # Shortened twice: before escaping to save work, and after it because escapes are longer.
        super().__init__(shortened(printable_lines(shortened(text, self.max_chars)), self.max_chars))


class UserError(PlannerError):
    """The input is wrong. Nothing was started."""

    exit_code = 2
    max_chars = MAX_CHARS


class JobError(UserError):
    """A job file is wrong. The message has one line per mistake."""


class ObjectiveUnavailable(UserError, ValueError):
    """An objective is not installed, or its package cannot be used.

    It is also a ValueError, so that pydantic lists it among the mistakes of a job.
    """


class DataKindUnavailable(UserError, ValueError):
    """A kind of data is not installed, or its package cannot be used.

    It is also a ValueError, so that pydantic lists it among the mistakes of a job.
    """


class TrackerUnavailable(UserError, ValueError):
    """A tracker or its library is not installed, or its package cannot be used.

    It is also a ValueError, so that pydantic lists it among the mistakes of a job.
    """


class ClusterError(UserError):
    """A cluster file is wrong, or is no cluster file. The message has one line per mistake."""


class RecipeError(UserError):
    """Another system's recipe is wrong or incomplete. The message has one line per mistake."""


class PlanError(UserError):
    """No plan serves these batch sizes or this world size."""


class DataError(UserError):
    """The data set cannot be read, or is too small for the job."""

    problem = ""
    """the message without the job's keys. Empty: the message names none"""

    @classmethod
    def of(cls, key: str, problem: str) -> "DataError":
        """An error about what a key of the job names. A command without a job tells only the problem."""
        error = cls(f"{key}: {problem}")
        error.problem = problem
        return error


class NoExactSplit(PlannerError):
    """No setting of another system trains exactly this batch at that GPU count."""


class RunError(PlannerError):
    """The run cannot continue."""


class StoreError(RunError):
    """The run's folder cannot be reached, or its content cannot be trusted."""

    max_chars = MAX_CHARS


class StaleGeneration(StoreError):
    """A newer generation has claimed the run, so this one must not commit."""


class NewerFormat(StoreError):
    """A stored file has a format that this version of planner does not read. It may well be intact."""


class ManifestMismatch(StoreError):
    """A commit's manifest is valid but is not the one that the ledger records. Somebody replaced it."""


class Unreachable(StoreError):
    """The storage refuses, fails or does not answer. What is stored there may well be intact."""


class DiskFull(StoreError):
    """The disk of the run's folder is full. Commits are not affected."""


class AnotherDriver(RunError):
    """Another driver runs the run, or has taken it over. This driver must not continue."""


class ResumeRefused(RunError):
    """The job's training identity (global batch, seed, data, model, optimizer, ...) differs from the run's."""


class ClusterUnreachable(RunError):
    """No Ray cluster, or no dashboard, answers at the address. It may be starting, so a retry may help."""

    max_chars = MAX_CHARS


class ClusterLost(RunError):
    """The Ray cluster ended during the run. The same command resumes the run on another cluster."""


class TrainingFailed(RunError):
    """Training stopped for a reason that a retry would not remove."""
