"""Errors which say that a device, or this machine, had no memory left. Standard library only: torch's are told by name.

A worker that runs out of memory raises `OutOfMemory`, with the facts by which the controller lowers the cap on
micro-batches (`planner.elastic.memory`).
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from planner.base.text import as_submitted
from planner.errors import PlannerError, printable_lines, shortened

MemoryPlace = Literal["forward", "loss", "backward", "evaluation", "optimizer", "start", "data", "reference", "saving"]
"""where in a generation memory ran out. `start`: before the first step, while the model was made or loaded. `data`:
while rows were read. `reference`: while cached log-probabilities were computed. `saving`: in a copy or a commit"""

CPU = "CPU"
"""the kind of device of workers without a GPU"""

# torch's own and CUDA's, also where a library of NVIDIA's reports it.
_TEXTS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
# Of torch: `you tried to allocate 4096 bytes` on the CPU, `Tried to allocate 2.00 GiB` on CUDA.
_ASKED = re.compile(r"tried to allocate ([0-9]+(?:\.[0-9]+)?) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MAX_TEXT = 300
# An error's causes may form a circle.
_MAX_CAUSES = 10


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """What a worker knows of its own lack of memory."""

    device: str
    """the GPU's name, or `CPU`"""
    place: MemoryPlace
    max_micro: int
    """the cap in force, in samples"""
    max_tokens: int | None
    """the cap in force, in tokens. None without `batch.max_tokens`"""
    samples: int
    """the largest micro-batch in force. At least 1"""
    tokens: int | None
    """its tokens, as far as they are known. None without `batch.max_tokens`"""
    longest: int | None
    """tokens of the longest sample, below which no cap can be. None without `batch.max_tokens`"""
    asked_bytes: int | None
    """what could not be allocated. None if the error does not say"""
    error: str
    """the error's text: one line, bounded"""


class OutOfMemory(Exception):
    """A worker had no memory left. It pickles, and holds no traceback: that would keep the tensors of the step."""

    def __init__(self, facts: MemoryFacts) -> None:
        super().__init__(facts)
        self.facts = facts

    def __str__(self) -> str:
        return self.facts.error


def memory_error_in(error: BaseException) -> BaseException | None:
    """The error, one that it was raised `from`, or a member of its group, that says that memory ran out. None if none.

    A `PlannerError` is none: all workers have agreed on it.
    """
    return None if isinstance(error, PlannerError) else next(filter(_says_so, _causes(error)), None)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    # torch.OutOfMemoryError and torch.AcceleratorError are RuntimeErrors. Ray's own error of that name is none.
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    def each() -> Iterator[BaseException]:
        waiting = deque([error])
        while waiting:
            found = waiting.popleft()
            yield found
            members = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
            waiting.extend([*([found.__cause__] if found.__cause__ else []), *members])

    return islice(each(), _MAX_CAUSES)


def asked_bytes(text: str) -> int | None:
    """How much an allocation asked for, by the text of torch's error. None if it does not say."""
    found = _ASKED.search(text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2].lower()])


def error_text(error: BaseException) -> str:
    """The first line of an error's text, bounded and printable. Python's own MemoryError may have none."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    named = first or f"{type(error).__name__}: out of memory"
    return printable_lines(shortened(as_submitted(named), _MAX_TEXT))
