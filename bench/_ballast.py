"""Memory that a bench holds until a resize has begun, so that workers then get pages that this machine has already.

A virtual machine with free page reporting gives its free memory back to its host. The machine of our figures gets it
again at 0.45 GB/s, and fills memory that it still has at 10 GB/s. A node of a cluster has its memory, so without this
the pauses of large models would be those of the host.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

from planner.base.host_memory import available_bytes

_MOST_OF_AVAILABLE = 0.4
_LOOK_S = 0.02


class Ballast:
    """Touched memory, given back as soon as `is_over` says so, or at the end.

    Args:
        num_bytes: at most 40 % of what is available are taken.
        is_over: asked fifty times a second, in a thread.
    """

    def __init__(self, num_bytes: int, is_over: Callable[[], bool]) -> None:
        self.num_bytes = min(num_bytes, int(_MOST_OF_AVAILABLE * available_bytes()))
        self._is_over, self._is_left = is_over, threading.Event()
        self._is_full = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="ballast", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_full.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left.set()
        self._thread.join()

    def _hold(self) -> None:
        held = np.empty(self.num_bytes, dtype=np.uint8)
        held.fill(1)
        self._is_full.set()
        while not self._is_left.wait(_LOOK_S) and not self._is_over():
            pass
        del held
