"""Arrays that grow while a data set is opened. Loader processes then map them instead of copying.

They are memory files (memfd_create(2), Linux). Other processes of the same user open them under `/proc` while this one
lives. The kernel removes them when it ends.
"""

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import DataError


class SharedArray:
    """A one-dimensional array of one dtype. Append to it, then read `array`."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        self._file, self._dtype = file, np.dtype(dtype)
        self._array: NDArray[Any] | None = None
        # A mapping stays valid after its file is closed.
        weakref.finalize(self, file.close)

    @classmethod
    def new(cls, dtype: str) -> "SharedArray":
        """An empty array in memory."""
        return cls(os.fdopen(os.memfd_create("planner-data"), "w+b", buffering=2**20), dtype)

    @classmethod
    def opened(cls, path: str, dtype: str) -> "SharedArray":
        """The array in a file. An OSError is not translated."""
        return cls(open(path, "rb"), dtype)  # noqa: PTH123  # stays open as long as the array

    def append(self, values: ArrayLike) -> None:
        """Add values at the end. Not allowed after `array` was read."""
        assert self._array is None  # a mapping does not grow
        self._file.write(np.ascontiguousarray(values, self._dtype).tobytes())

    @property
    def array(self) -> NDArray[Any]:
        """All values, read-only, shape `(n,)`."""
        if self._array is None:
            self._file.flush()
            descriptor = self._file.fileno()
            # An empty file cannot be mapped.
            if os.fstat(descriptor).st_size:
                self._array = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), self._dtype)
            else:
                self._array = np.empty(0, self._dtype)
        return self._array

    def __reduce__(self) -> tuple[Callable[[str, str], "SharedArray"], tuple[str, str]]:
        """Pickle the path, so that another process maps the same memory."""
        _ = self.array
        return _reopen, (f"/proc/{os.getpid()}/fd/{self._file.fileno()}", self._dtype.str)


def _reopen(path: str, dtype: str) -> SharedArray:
    try:
        return SharedArray.opened(path, dtype)
    except OSError as error:
        raise DataError(f"the process that holds the data at {path} has ended ({error.strerror})") from error
