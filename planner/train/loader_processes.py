"""Loads steps in processes of their own, which share nothing with the worker but a pipe each.

A process that is killed closes its pipe, wherever it was. With torch's `DataLoader`, the worker would wait for ever if
its process was killed in the midst of a message or while it held one of the locks that they share.
"""

import io
import itertools
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from ctypes import c_uint64
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
from torch import Tensor

from planner.base import progress_counter
from planner.errors import PlannerError, TrainingFailed
from planner.train.batches import LoadedStep

_SPAWN = get_context("spawn")  # forking is unsafe with threads and a GPU
_AHEAD = 2
"""steps that a process is asked for at a time: it loads one while another waits to be taken"""
_END_S = 5.0
"""for a process to end by itself, after the step that it loads. Then it is killed"""

Load = Callable[[int], LoadedStep]
"""a step's cursor -> one worker's part of it. Must be picklable"""
Steps = Generator[LoadedStep, None, None]


def load_in_processes(load: Load, cursors: range, number: int) -> Steps:
    """Load the steps at `cursors` in this number of processes, which take turns. The first is loaded here: they start.

    Raises:
        PlannerError: `load` raised it.
        TrainingFailed: a process was killed.
        RuntimeError: `load` raised another error. The message has its traceback.
    """
    # Shared memory without a lock: only a change of the number matters, not its exact value.
    done = _SPAWN.RawValue(c_uint64)
    progress_counter.listen_to(done)
    processes: list[_LoaderProcess] = []
    try:
        # One by one into the list, so that those that run are stopped if the next one cannot start.
        processes.extend(_LoaderProcess(load, done) for _ in range(number))
        turns = itertools.cycle(processes)
        waiting: deque[_LoaderProcess] = deque()
        to_ask = iter(cursors[1:])

        def ask(most: int) -> None:
            for cursor in itertools.islice(to_ask, most):
                waiting.append(next(turns))
                waiting[-1].ask(cursor)

        ask(_AHEAD * number)
        yield load(cursors[0])
        while waiting:
            found = waiting.popleft().answer()
            ask(1)
            yield found
    finally:
        # All are told before any is waited for.
        for process in processes:
            process.stop()
        for process in processes:
            process.join()


class _LoaderProcess:
    """One process and the worker's end of its pipe."""

    def __init__(self, load: Load, done: c_uint64) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, load, done), daemon=True)
        self._process.start()
        theirs.close()  # so that its death ends what is read here

    def ask(self, cursor: int) -> None:
        with suppress(OSError):  # it is dead, and `answer` says so
            self._pipe.send(cursor)

    def answer(self) -> LoadedStep:
        """The first step of those asked for that was not returned yet."""
        try:
            sent = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:  # OSError: in the midst of a step
            raise TrainingFailed(self._how_it_ended()) from error
        found = pickle.loads(sent)  # noqa: S301  our own process wrote it
        if isinstance(found, Exception):
            raise found
        return cast("LoadedStep", found)

    def _how_it_ended(self) -> str:
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is not None and code >= 0:
            return f"a loader process ended with exit code {code}. The worker's log says why"
        how = "" if code is None else f" by signal {-code}"
        return (
            f"a loader process was killed{how}, perhaps because memory ran out. "
            "Lower workers.loader_processes (0 loads on a thread)"
        )

    def stop(self) -> None:
        """Ask it to end, by the end of its pipe."""
        self._pipe.close()

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.join(_END_S)
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, load: Load, done: c_uint64) -> None:
    """The main loop of a process: load the steps that are asked for, until the worker has closed the pipe or died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the worker's to handle
    # As torch's DataLoader does. Otherwise each process would start a thread per core, beside training.
    torch.set_num_threads(1)
    progress_counter.report_to(done)
    with suppress(EOFError, OSError):
        while True:
            cursor = pipe.recv()
            pipe.send_bytes(_loaded(load, cursor))


def _loaded(load: Load, cursor: int) -> bytes:
    """A step or its error, pickled as one piece. A tensor sent by itself holds a file descriptor until it is freed."""
    found: LoadedStep | Exception
    try:
        found = load(cursor)
    except PlannerError as error:
        found = error
    except Exception:  # noqa: BLE001  raised again by the worker
        found = RuntimeError(f"in a loader process:\n{traceback.format_exc()}")
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
