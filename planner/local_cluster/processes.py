"""Finds and ends the processes of an embedded cluster. The driver and its supervisor use it, on Linux only."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    session: int
    is_zombie: bool


def _processes() -> list[_Process]:
    """All processes of this machine that can be read."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        # "pid (name) state parent group session ...". A name may contain spaces and brackets.
        state, parent, _, session, *_ = stat.rpartition(")")[2].split()
        found.append(_Process(pid=int(entry.name), parent=int(parent), session=int(session), is_zombie=state in "ZX"))
    return found


def _descendants(root: int, processes: list[_Process]) -> Iterator[int]:
    for process in processes:
        if process.parent == root:
            yield process.pid
            yield from _descendants(process.pid, processes)


def members(leader: int) -> set[int]:
    """The pids of living processes in the leader's session or below it, without the leader."""
    processes = _processes()
    below = set(_descendants(leader, processes))
    return {p.pid for p in processes if not p.is_zombie and p.pid != leader and (p.session == leader or p.pid in below)}


def children(parent: int) -> set[int]:
    """The pids of the direct children of `parent`, with those that have ended and are not reaped yet."""
    return {process.pid for process in _processes() if process.parent == parent}


def ended_children(parent: int) -> set[int]:
    """The pids of the direct children of `parent` that have ended and are not reaped yet."""
    return {process.pid for process in _processes() if process.parent == parent and process.is_zombie}


def kill_all(leader: int, deadline_s: float) -> set[int]:
    """SIGKILL a session until it is empty, and return the pids of survivors. A leader does not kill itself."""
    deadline = time.monotonic() + deadline_s
    if leader != os.getpid():
        _kill(leader)
    # Again and again: a process may start another one before it is killed.
    while (living := members(leader)) and time.monotonic() < deadline:
        for pid in living:
            _kill(pid)
        time.sleep(0.02)
        if leader == os.getpid():
            reap()
    return living


def kill_tree(root: int) -> None:
    """SIGKILL a raylet and all processes below it. SIGSTOP comes first, so that it starts no more processes."""
    try:
        os.kill(root, signal.SIGSTOP)
    except ProcessLookupError:
        return
    for pid in [root, *_descendants(root, _processes())]:
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


def reap() -> None:
    """Reap ended children, including adopted ones. Ray's Popen objects tolerate it."""
    with contextlib.suppress(ChildProcessError):  # there is none
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
