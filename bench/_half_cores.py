"""Limits each of some processes to a share of a core: by a cgroup, or else by stopping it in turns.

Four workers on two cores then have half a core each at every world size, so they do not take it from each other.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_PERIOD_US = 10_000
"""short beside a step, so that a worker is not away for long while the others wait for it"""
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(pids: Sequence[int], share: float) -> Iterator[str]:
    """Give each process `share` of a core. Yields how: `cgroup` or `stopped in turns`."""
    name = f"planner-bench-{os.getpid()}"
    made: list[Path] = []
    try:
        try:
            for rank, pid in enumerate(pids):
                made.append(_group(f"{name}-{rank}", share))
                (made[-1] / "cgroup.procs").write_text(str(pid))
        except OSError:
            _remove(made)
            with _in_turns(pids, share):
                yield "stopped in turns"
            return
        yield "cgroup"
    finally:
        _remove(made)


def _group(name: str, share: float) -> Path:
    """Make a cgroup with a limit, of version 1 or 2.

    Raises:
        OSError: that is not allowed here.
    """
    quota = str(max(round(share * _PERIOD_US), 1_000))  # the least that Linux takes
    if (_V1 / "cpu.shares").exists() or (_V1 / "tasks").exists():
        group = _V1 / name
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(quota)
        return group
    group = _V2 / name
    group.mkdir()
    (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    return group


def _remove(groups: list[Path]) -> None:
    """Move what is left in the groups back to the root, and remove them."""
    for group in groups:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()
    groups.clear()


@contextlib.contextmanager
def _in_turns(pids: Sequence[int], share: float) -> Iterator[None]:
    """Stop each process for a part of every period, one after another."""
    ends = threading.Event()

    def turn(rank: int, pid: int) -> None:
        period_s = _PERIOD_US / 1e6
        ends.wait(period_s * rank / len(pids))
        while not ends.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(period_s * (1 - share))
            os.kill(pid, signal.SIGCONT)
            time.sleep(period_s * share)

    threads = [threading.Thread(target=turn, args=each, daemon=True) for each in enumerate(pids)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()
