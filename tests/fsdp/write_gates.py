"""Holds background writes back inside a worker process, until training has gone on or waits for them.

A gate closes when a step is held. It opens when training has done some more steps, when training waits for the commit,
or when the commit is abandoned. So a test waits for events, and never for seconds.
"""

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from events import EVENT_S
from worker_functions import run_job

FOREVER = 10**9


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Where writes wait, until when, and how that ends."""

    rank: int | None = None
    """the worker whose writes wait. None: every worker's"""
    place: str = "shards"
    """`shards`: in the middle of each file. `manifest`: before it is written. `record`: after it was"""
    steps: int = 1
    """that training does after the held step before the gate opens by itself"""
    kill_from: int = FOREVER
    """commits of this step or a later one end the process by SIGKILL when their gate opens"""
    error: int = 0
    """an errno that the write raises instead, from `error_from` on"""
    error_from: int = FOREVER

    def held(self, rank):
        """Whether this worker's writes wait here."""
        return self.rank in {None, rank}


class _Keeper:
    """The gate of the commit in flight in this process, and what stands in for methods of planner."""

    def __init__(self, rank, gate):
        self._is_held, self._gate = gate.held(rank), gate
        self._step = -1
        self._here, self._trainer = threading.local(), threading.current_thread()
        self.opened = threading.Event()
        self.opened.set()
        self.waited = 0
        """writes that found the gate closed"""

    def pass_by(self):
        """Wait in the background until the gate opens."""
        opened, step = self.opened, self._step
        self.waited += not opened.is_set()
        if not opened.wait(EVENT_S):  # a mistake in the test, which goes on and fails
            raise RuntimeError(f"the gate of step {step} was never opened")
        if step >= self._gate.kill_from:
            os.kill(os.getpid(), signal.SIGKILL)
        if step >= self._gate.error_from:
            raise OSError(self._gate.error, os.strerror(self._gate.error))

    # -- on the training thread

    def begin(self, begin, commits, step, cursor, *, is_last):
        self._begun = step
        return begin(commits, step, cursor, is_last=is_last)

    def held(self, held, commits, *arguments, is_last):
        """After the commit before has landed, and before the thread of this one starts."""
        self._step, self.opened = self._begun, threading.Event()
        if is_last or not self._is_held:
            self.opened.set()
        return held(commits, *arguments, is_last=is_last)

    def finish(self, finish, commits):
        self.opened.set()
        return finish(commits)

    def abandon(self, abandon, work, wait_s):
        work._is_abandoned = True
        self.opened.set()
        return abandon(work, wait_s)

    def step(self, init, step, **arguments):
        if arguments["number"] >= self._step + self._gate.steps:
            self.opened.set()
        return init(step, **arguments)

    # -- on a thread that writes

    def write(self, write, files, *arguments):
        self._here.place = "shards"
        return write(files, *arguments)

    def seal(self, seal, files, *arguments):
        self._here.place = "seal"
        return seal(files, *arguments)

    def stream(self, write, stream, content):
        """Stop after half of a file's first piece."""
        view = memoryview(content).cast("B")
        is_here = getattr(self._here, "place", "") == self._gate.place == "shards"
        if not (is_here and self._is_held and not stream._size_bytes):
            return write(stream, view)
        write(stream, view[: len(view) // 2])
        stream.flush()
        self.pass_by()
        write(stream, view[len(view) // 2 :])
        return len(view)

    def put(self, put, run, manifest):
        if self._is_held and self._gate.place == "manifest":
            self.pass_by()
        put(run, manifest)
        if self._is_held and self._gate.place == "record":
            self.pass_by()

    # -- on both

    def record(self, write, journal, record):
        assert threading.current_thread() is self._trainer, "only the training thread writes the ledger"
        return write(journal, record)


@contextmanager
def gated(rank, gate):
    """Patch this process so that its background writes wait at the gate. Gives the gate's keeper."""
    from planner.store.run_folder import RunFolder
    from planner.train.background import BackgroundWork
    from planner.train.checkpoints.tensor_writer import _HashedStream
    from planner.train.commit_files import CommitFiles
    from planner.train.commits import Commits
    from planner.train.journal import Journal
    from planner.train.optimizer_step import Step

    keeper = _Keeper(rank, gate)
    patches = [
        (Commits, "begin", keeper.begin),
        (Commits, "_held", keeper.held),
        (Commits, "finish", keeper.finish),
        (CommitFiles, "write", keeper.write),
        (CommitFiles, "seal", keeper.seal),
        (BackgroundWork, "abandon", keeper.abandon),
        (Step, "__init__", keeper.step),
        (_HashedStream, "write", keeper.stream),
        (RunFolder, "put_manifest", keeper.put),
        (Journal, "record", keeper.record),
    ]
    with ExitStack() as stack:
        for owner, name, stand_in in patches:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, _method(stand_in, original))
        yield keeper


def _method(stand_in, original):
    """A function that a class binds. It hands the original on."""
    return lambda *arguments, **named: stand_in(original, *arguments, **named)


def run_gated(rank, job, url, gate, stop_at=None):
    """One generation whose background writes wait at the gate. Returns its end and how many writes have waited."""
    use_second_scheme()
    with gated(rank, gate) as keeper:
        return run_job(rank, job, url, stop_at), keeper.waited


def told_gated(rank, job, url, gate, run=run_job):
    """What a generation ended with on this worker: the type and text of its error, or ""."""
    from planner.errors import PlannerError

    use_second_scheme()
    with gated(rank, gate) as keeper:
        try:
            run(rank, job, url)
        except PlannerError as error:
            return type(error).__name__, str(error), keeper.waited
    return "", "", keeper.waited


def use_second_scheme():
    """`second://PATH`: files of this machine by way of fsspec, so that several processes share a store by URL."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    class Second(LocalFileSystem):
        protocol = ("second",)

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(str(path).removeprefix("second://"))

        def pipe_file(self, path, value, mode="overwrite"):
            """As object stores do it: put if absent is atomic."""
            self.makedirs(self._parent(path), exist_ok=True)
            with Path(path).open("xb" if mode == "create" else "wb") as stream:
                stream.write(value)

    fsspec.register_implementation("second", Second, clobber=True)
