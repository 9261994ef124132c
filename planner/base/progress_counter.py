"""Counts the work that this process has done. Each unit (a round, a row, a chunk of bytes) changes the number.

The elastic controller reads it. A number that changes tells slow work from a hang, however long a step takes.
"""

import itertools
from ctypes import c_uint64

_numbers = itertools.count(1)
_last = 0
_of_children: list[c_uint64] = []
_of_parent: c_uint64 | None = None


def count_work(*_ignored: object) -> None:
    """Count one unit of work. Takes and ignores any arguments, so that it can be a callback."""
    global _last  # noqa: PLW0603  # one process, one number
    _last = next(_numbers)
    if _of_parent is not None:
        _of_parent.value += 1


def work_done() -> int:
    """Units of work that this process and its loader processes have done so far."""
    return _last + sum(counter.value for counter in _of_children)


def listen_to(counter: c_uint64) -> None:
    """In the parent process: include this counter in shared memory, which child processes increase."""
    _of_children.append(counter)


def report_to(counter: c_uint64) -> None:
    """In a child process: also count into this counter in shared memory."""
    global _of_parent  # noqa: PLW0603  # one process, one parent
    _of_parent = counter
