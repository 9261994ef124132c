"""Errors of code that a user wrote: their own training loop and their own data set.

A `UserCodeFailed` carries what a person needs to mend the code: type and message of the error, the line of their file,
and the whole traceback. Everything in it is bounded, and control characters are escaped.
"""

import sysconfig
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from planner.base.text import as_submitted
from planner.errors import printable_lines, shortened

MAX_TRACEBACK_CHARS = 20_000
"""of a whole traceback. A longer one loses its middle"""
_MAX_KIND, _MAX_MESSAGE, _MAX_PLACE = 100, 300, 300
# An error's causes may form a circle.
_MAX_CAUSES = 10

_PACKAGE = Path(__file__).parents[1]
_PYTHON = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib"))
# Of any environment: one may see the packages of another.
_INSTALLED = frozenset({"site-packages", "dist-packages"})

Origin = Literal["code", "environment", "peers"]
"""where an error comes from: the user's code, storage, memory, a device or a network, or other workers that are gone"""

# A file that is missing, or in the way, is a mistake. Python counts it among the errors of the operating system.
_MISTAKES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_ENVIRONMENT = (OSError, MemoryError, EOFError)
_ENVIRONMENT_NAMES = frozenset({"OutOfMemoryError", "AcceleratorError", "BrokenExecutor"})
_ENVIRONMENT_PACKAGES = frozenset(
    {"aiohttp", "botocore", "fsspec", "gcsfs", "google", "grpc", "httpcore", "httpx", "ray", "s3fs", "urllib3"}
)
# torch raises plain RuntimeErrors for these. The last is a DataLoader's process that was killed.
_ENVIRONMENT_TEXTS = (
    "cuda error", "cublas_status", "cudnn_status", "out of memory", "can't allocate memory", "dataloader worker (pid",
)  # fmt: skip
_PEER_TEXTS = (
    "gloo", "nccl", "connection closed", "connection reset", "connection refused", "broken pipe", "timed out",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CodeError:
    """An error that the user's code raised."""

    kind: str
    """the exception's type"""
    message: str
    """one line. May be empty"""
    place: str
    """`FILE:LINE, in FUNCTION` of the innermost line of theirs. Empty if none is known"""
    traceback: str

    @property
    def text(self) -> str:
        """`AttributeError: 'Run' object has no attribute 'shrad' (my_loop.py:24, in train)`."""
        what = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{what} ({self.place})" if self.place else what


class UserCodeFailed(Exception):
    """The user's training function raised an error, or let one through. It pickles, whatever they raised."""

    def __init__(self, error: CodeError, origin: Origin, num_steps: int) -> None:
        """Take the error, where it comes from, and how many steps its worker group had done."""
        super().__init__(error, origin, num_steps)
        self.error, self.origin, self.num_steps = error, origin, num_steps

    def __str__(self) -> str:
        return f"train() raised {self.error.text}"


def is_mistake(error: BaseException) -> bool:
    """Whether this is an error of the user's training function that another try would meet again."""
    return isinstance(error, UserCodeFailed) and error.origin == "code"


def origin_of(error: BaseException) -> Origin:
    """Where an error comes from that the user's function raised or let through.

    "code" is a mistake, which another try meets again. The others come and go with nodes, networks, memory and storage,
    so another try may succeed. An error that was raised `from` one of those counts as that one.
    """
    found = list(_causes(error))
    if any(map(_is_of_peers, found)):
        return "peers"
    return "environment" if any(map(_is_of_the_environment, found)) else "code"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and the members of groups, at most `_MAX_CAUSES`."""

    def each() -> Iterator[BaseException]:
        waiting = deque([error])
        while waiting:
            found = waiting.popleft()
            yield found
            members = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
            waiting.extend([*([found.__cause__] if found.__cause__ else []), *members])

    return islice(each(), _MAX_CAUSES)


def _is_of_peers(error: BaseException) -> bool:
    if any(base.__name__ == "DistError" for base in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in _message(error).lower() for text in _PEER_TEXTS)


def _is_of_the_environment(error: BaseException) -> bool:
    if isinstance(error, _MISTAKES):
        return False
    if isinstance(error, _ENVIRONMENT):
        return True
    bases = type(error).__mro__
    if any(base.__name__ in _ENVIRONMENT_NAMES for base in bases):
        return True
    if any(base.__module__.partition(".")[0] in _ENVIRONMENT_PACKAGES for base in bases):
        return True
    return isinstance(error, RuntimeError) and any(text in _message(error).lower() for text in _ENVIRONMENT_TEXTS)


def code_error(error: BaseException) -> CodeError:
    """What a person needs to know of an error, each part bounded and printable."""
    whole = "".join(traceback.format_exception(error))
    return CodeError(
        kind=_line(type(error).__name__, _MAX_KIND),
        message=_line(_message(error), _MAX_MESSAGE),
        place=_line(_place(error), _MAX_PLACE),
        traceback=printable_lines(shortened(as_submitted(whole), MAX_TRACEBACK_CHARS)),
    )


def _line(text: str, most: int) -> str:
    """The first line that is not empty, printable, and no longer than `most` characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shortened(printable_lines(shortened(as_submitted(first), most)), most)


def _message(error: BaseException) -> str:
    """Its text. A syntax error's names its file and line, which `_place` has. `__str__` may be the user's code."""
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # noqa: BLE001
        return ""


def _place(error: BaseException) -> str:
    """The innermost line of the user's code, or of any code but planner's if all of it is in libraries."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    others = [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]
    theirs = [frame for frame in others if not _is_library(Path(frame.filename))]
    if not (found := theirs or others):
        return ""
    function = "" if found[-1].name == "<module>" else f", in {found[-1].name}"
    return f"{found[-1].filename}:{found[-1].lineno}{function}"


def _is_library(file: Path) -> bool:
    """Whether the file is part of Python or of an installed package."""
    return not _INSTALLED.isdisjoint(file.parts) or any(folder in file.parents for folder in _PYTHON)
