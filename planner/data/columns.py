"""Arrays that grow while a data set is opened, and that a loader process then maps instead of copying.

They lie in memory files (memfd_create(2), Linux): another process of the same user finds them under `/proc` as long
as this one lives, and nothing is left behind, however it ends.
"""

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import DataError


class MappedArray:
    """One-dimensional, of one dtype; append to it, then read `array`."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        self._file, self._dtype = file, np.dtype(dtype)
        self._array: NDArray[Any] | None = None
        # What is mapped stays mapped.
        weakref.finalize(self, file.close)

    @classmethod
    def new(cls, dtype: str) -> "MappedArray":
        """An empty one."""
        return cls(os.fdopen(os.memfd_create("planner-data"), "w+b", buffering=2**20), dtype)

    @classmethod
    def opened(cls, path: str, dtype: str) -> "MappedArray":
        """What lies in a file; the OSError is the caller's."""
        return cls(open(path, "rb"), dtype)  # noqa: PTH123  # held as long as the column

    def append(self, values: ArrayLike) -> None:
        """Add values at the end; not after `array` was asked for."""
        assert self._array is None  # what is mapped does not grow
        self._file.write(np.ascontiguousarray(values, self._dtype).tobytes())

    @property
    def array(self) -> NDArray[Any]:
        """All of it, read-only, shape `(n,)`."""
        if self._array is None:
            self._file.flush()
            descriptor = self._file.fileno()
            if os.fstat(descriptor).st_size:
                self._array = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), self._dtype)
            else:
                self._array = np.empty(0, self._dtype)
        return self._array

    def __reduce__(self) -> tuple[Callable[[str, str], "MappedArray"], tuple[str, str]]:
        """For another process, which maps the same memory."""
        _ = self.array
        return _reopen, (f"/proc/{os.getpid()}/fd/{self._file.fileno()}", self._dtype.str)


def _reopen(path: str, dtype: str) -> MappedArray:
    try:
        return MappedArray.opened(path, dtype)
    except OSError as error:
        raise DataError(f"the process whose data is at {path} is gone ({error.strerror})") from error
