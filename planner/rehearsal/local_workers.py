"""Worker processes on this machine without Ray: real FSDP, for tests and for `planner verify`.

The processes are kept and serve one call after another, since importing torch takes longer than a short run.
"""

import atexit
import ctypes
import multiprocessing
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, cast

from planner.base.user_errors import UserCodeFailed
from planner.errors import PlannerError, TrainingFailed
from planner.wording.failures import memory_text

# Limit for one stage of a rehearsal, for models of any size. A hanging collective fails after two minutes.
_DEADLINE_S = 3600.0
# How long the others may go on after the first error. Usually all raise the same one.
_OTHERS_S = 30.0
_KILLED_S = 10.0
_SPAWN = multiprocessing.get_context("spawn")


class LocalWorkers:
    """A context manager for `most` worker processes. Leaving it ends them.

    `backend` is that of torch.distributed. With gloo, several workers can share a GPU (`planner.train.collectives`).
    `context` is that of multiprocessing. A forkserver's suits workers on the CPU.
    """

    # Any: typeshed's BaseContext has no Process.
    def __init__(self, most: int, backend: str = "gloo", context: Any = _SPAWN) -> None:
        self._workers, self._backend = [], backend
        # Daemons could not start processes to load data. Without this, Python would wait for the workers at exit.
        atexit.register(self.close)
        # The first process would start it, and Python then unblocks SIGINT.
        resource_tracker.ensure_running()
        for _ in range(most):
            with _without_sigint():
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,))
                process.start()
                theirs.close()
                self._workers.append((process, ours))

    def run(self, function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
        """Call `function(rank, *arguments)` on `world_size` workers in one process group. Returns results by rank.

        Raises:
            PlannerError: a worker raised it. The first one wins.
            TrainingFailed: a worker raised another error (the message has its traceback), died or hung.
        """
        with tempfile.TemporaryDirectory(prefix="planner-") as folder:
            pipes = [pipe for _, pipe in self._workers[:world_size]]
            for rank, pipe in enumerate(pipes):
                pipe.send((function, arguments, rank, world_size, self._backend, str(Path(folder) / "rendezvous")))
            answers = dict[int, Any]()
            try:
                answers, error = _answers(pipes)
            finally:
                # Before the folder goes: who still connects writes there.
                if len(answers) < world_size:
                    self.close()
        if error is not None:
            if _keeps_waiting(self._backend):
                self.close()
            raise error
        return [answers[rank] for rank in range(world_size)]

    def close(self) -> None:
        """End all workers."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join(_KILLED_S)  # a process that waits for a disk ends later
        self._workers.clear()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@contextmanager
def _without_sigint() -> Iterator[None]:
    """Block SIGINT, also in processes that are started here. A terminal sends Ctrl-C to all of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answers(pipes: Sequence[Connection]) -> tuple[dict[int, Any], PlannerError | None]:
    """What the workers answer, by rank, and the first error. After an error, the others have little time."""
    ranks, answers = {pipe: rank for rank, pipe in enumerate(pipes)}, dict[int, Any]()
    first: PlannerError | None = None
    deadline_s = time.monotonic() + _DEADLINE_S
    while ranks and (ready := wait(list(ranks), max(0.0, deadline_s - time.monotonic()))):
        for pipe in cast("list[Connection]", ready):
            rank = ranks.pop(pipe)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                return answers, first or TrainingFailed(f"worker {rank} died")
            if first is None and isinstance(answers[rank], PlannerError):
                first, deadline_s = answers[rank], time.monotonic() + _OTHERS_S
    if ranks and first is None:
        late = ", ".join(f"worker {rank}" for rank in ranks.values())
        first = TrainingFailed(f"{late}: not done after {_DEADLINE_S:.0f} s. Use fewer steps or a smaller model")
    return answers, first


def _serve(pipe: Connection) -> None:
    """The main loop of a worker process: run the calls that arrive until the pipe closes."""
    import torch

    _die_with_parent()
    torch.set_num_threads(1)
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        pipe.send(_call(*call))


def _die_with_parent() -> None:
    """Let Linux kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _call(
    function: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world_size: int, backend: str, file: str
) -> Any:
    """The function's result, or the error that it raised, in a new process group."""
    import torch.distributed as dist

    store = dist.FileStore(file, world_size)  # type: ignore[attr-defined]  # torch exports it without `__all__`
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120))
    # Until all are connected, nobody may leave: a worker that is still connecting would die of it.
    store.set(f"connected/{rank}", "")
    store.wait([f"connected/{each}" for each in range(world_size)])
    found = _outcome(function, rank, *arguments)
    if not (isinstance(found, PlannerError) and _keeps_waiting(backend)):  # else the caller kills this process
        dist.destroy_process_group()
    return found


def _outcome(function: Callable[..., Any], rank: int, *arguments: Any) -> Any:
    try:
        return function(rank, *arguments)
    except PlannerError as error:
        return error
    except UserCodeFailed as failed:
        told = TrainingFailed(f"worker {rank}: {failed}")
        told.code_traceback = failed.error.traceback
        return told
    except Exception as error:  # noqa: BLE001  # the caller gets the traceback
        if text := memory_text(str(error)):
            return TrainingFailed(f"worker {rank}: {text}")
        return TrainingFailed(f"worker {rank}:\n{traceback.format_exc()}")


def _keeps_waiting(backend: str) -> bool:
    """Whether the end of a group waits for collectives that other workers may never join.

    NCCL's does (`ProcessGroupNCCL::shutdown`, torch 2.11 and 2.13), so a failed worker could not tell its error.
    """
    return "nccl" in backend
