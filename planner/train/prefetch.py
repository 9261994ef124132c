"""Loads the loop's next steps in advance, on a thread or in loader processes."""

import io
import logging
import pickle
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from ctypes import c_uint64
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from planner.base import progress_counter
from planner.errors import PlannerError, TrainingFailed
from planner.train.batches import MicroBatch

_log = logging.getLogger(__name__)

# The longest wait at close for a load under way. A healthy disk takes less.
_CLOSE_S = 60.0

Load = Callable[[int], list[MicroBatch]]
"""a step's cursor -> one worker's micro-batches. Must be picklable for loader processes"""
_Steps = Generator[list[MicroBatch], None, None]


class Prefetcher:
    """Loads the steps at `cursors`, one after another. It does not move the run's cursor, which belongs to the loop."""

    def __init__(self, load: Load, cursors: range, *, processes: int, device: torch.device) -> None:
        self._steps = _in_processes(load, cursors, processes) if processes else _here(load, cursors)
        self._is_pinned = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, "planner-load", _choose(device) if self._is_pinned else None)
        self._last: Future[list[MicroBatch]] | None = None

    def start(self) -> "Future[list[MicroBatch]]":
        """Begin to load the next step.

        The future raises:
            PlannerError: a row cannot be read, or a loader process was killed.
        """
        self._last = self._thread.submit(self._next)
        return self._last

    def _next(self) -> list[MicroBatch]:
        batches = next(self._steps)
        return [batch.pinned() for batch in batches] if self._is_pinned else batches

    def close(self) -> None:
        """Wait for the load under way, then end the thread and the processes.

        A load that hangs for `_CLOSE_S` is abandoned, so that the error that ended the loop is reported.
        """
        if self._last is not None and wait([self._last], _CLOSE_S).not_done:
            _log.warning("the rows of the next step were not read within %.0f s. Ending without them", _CLOSE_S)
            self._thread.shutdown(wait=False)
            return
        self._thread.shutdown(wait=True)
        self._steps.close()


def _choose(device: torch.device) -> Callable[[], None]:
    """An initialiser for a thread that pins memory, which would otherwise use the node's first GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return partial(torch.cuda.set_device, index)


def _here(load: Load, cursors: range) -> _Steps:
    for cursor in cursors:
        yield load(cursor)


def _in_processes(load: Load, cursors: range, processes: int) -> _Steps:
    """Load in spawned processes: forking is unsafe with threads and a GPU. Orphans end within 5 s (torch does that)."""
    # Shared memory without a lock: only a change of the number matters, not its exact value.
    done = get_context("spawn").RawValue(c_uint64)
    progress_counter.listen_to(done)
    loader = DataLoader(
        _Pickled(load),
        batch_size=None,
        sampler=cursors[1:],
        num_workers=processes,
        worker_init_fn=partial(progress_counter.report_to, done),
        multiprocessing_context="spawn",
        # Without a generator of its own, it would draw from the one that dropout uses.
        generator=torch.Generator(),
    )
    steps = iter(loader)
    try:
        # Loaded here, as the processes take seconds to start.
        yield load(cursors[0])
        for step in steps:
            found = pickle.loads(step)  # noqa: S301  our own loader process wrote it
            if isinstance(found, PlannerError):
                raise found
            yield found
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise TrainingFailed(
            f"a loader process was killed ({error}), perhaps because memory ran out. "
            "Lower workers.loader_processes (0 loads on a thread)"
        ) from error
    finally:
        # Not left to the garbage collector, since a stored traceback would keep the processes alive.
        steps._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001


class _Pickled(Dataset[bytes]):
    """A step or its error, pickled as one piece. A tensor sent by itself holds a file descriptor until it is freed."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def __getitem__(self, cursor: int) -> bytes:
        found: list[MicroBatch] | PlannerError
        try:
            found = self._load(cursor)
        except PlannerError as error:
            found = error
        stream = io.BytesIO()
        _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(found)
        return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which saves 0.15 ms per tensor (measured), half of it in the training process."""

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is Tensor and value.layout == torch.strided and not value.requires_grad
        if plain and value.dtype in _AS_ARRAYS:
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


# The types in batches. numpy does not have all of torch's types.
_AS_ARRAYS = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32}
