"""Loads the loop's next steps in advance, on a thread or in loader processes."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import torch

from planner.train.batches import LoadedStep
from planner.train.loader_processes import Load, Steps, load_in_processes

_log = logging.getLogger(__name__)

# The longest wait at close for a load under way. A healthy disk takes less.
_CLOSE_S = 60.0


class Prefetcher:
    """Loads the steps at `cursors`, one after another. It does not move the run's cursor, which belongs to the loop."""

    def __init__(self, load: Load, cursors: range, *, processes: int, device: torch.device) -> None:
        self._steps = load_in_processes(load, cursors, processes) if processes else _here(load, cursors)
        self._is_pinned = device.type == "cuda"
        # One thread: steps come in order, and a generator cannot be entered twice.
        self._thread = ThreadPoolExecutor(1, "planner-load", _choose(device) if self._is_pinned else None)
        self._last: Future[LoadedStep] | None = None

    def start(self) -> "Future[LoadedStep]":
        """Begin to load the next step.

        The future raises:
            PlannerError: a row cannot be read, or a loader process was killed.
        """
        self._last = self._thread.submit(self._next)
        return self._last

    def _next(self) -> LoadedStep:
        step = next(self._steps)
        # On this thread, too: pinning copies, and the training thread need not wait for that.
        return step.pinned() if self._is_pinned else step

    def close(self) -> None:
        """Wait for the load under way, then end the thread and the processes.

        A load that hangs for `_CLOSE_S` is abandoned, so that the error that ended the loop is reported.
        """
        if self._last is not None and wait([self._last], _CLOSE_S).not_done:
            _log.warning("the rows of the next step were not read within %.0f s. Ending without them", _CLOSE_S)
            # The load is still inside the generator, which therefore cannot be closed.
            self._thread.shutdown(wait=False)
            return
        self._thread.shutdown(wait=True)
        self._steps.close()


def _choose(device: torch.device) -> Callable[[], None]:
    """An initialiser for a thread that pins memory, which would otherwise use the node's first GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return partial(torch.cuda.set_device, index)


def _here(load: Load, cursors: range) -> Steps:
    for cursor in cursors:
        yield load(cursor)
