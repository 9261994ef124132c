"""The faults, each with the name under which it is counted."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_memory import (
    BOTH_LOST,
    IN_HAND_OVER,
    SHORT,
    WORKER,
    die_in_hand_over,
    kill_all_keepers,
    kill_keeper,
    lose_both_copies,
    shorten_memory,
)
from chaos_writes import next_write, writes

if TYPE_CHECKING:
    from storm import Storm


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind. `act` returns whether there was anything to do it to, and undoes what would last."""

    name: str
    act: Callable[["Storm", random.Random], bool]
    needs: str = ""
    """`network`: namespaces; `disk`: a file system of its own"""
    has_aim: bool = False
    """`Storm.hits` counts how often it met what it is for"""


# A process that was killed ends at once, but not while a busy machine does not come to it.
_DEAD_S = 300.0


def add(storm: "Storm", dice: random.Random) -> bool:
    """One more node, if there may be more."""
    del dice
    if len(storm.hosts.nodes) >= storm.most:
        return False
    return bool(storm.hosts.add())


def drain(storm: "Storm", dice: random.Random) -> bool:
    """Notice of 1 to 30 s; then the node is killed."""
    if not (node := storm.any_node(dice)):
        return False
    notice_s = dice.choice([1, 2, 5, 10, 30])
    storm.hosts.drain(node, notice_s)
    storm.kill_later(node, notice_s)
    return True


def kill_node(storm: "Storm", dice: random.Random) -> bool:
    """No notice."""
    if node := storm.any_node(dice):
        storm.hosts.kill(node)
    return bool(node)


def _signal_one(storm: "Storm", dice: random.Random, text: str, number: int) -> int:
    pids = storm.hosts.pids(text)
    pid = dice.choice(pids) if pids else 0
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pid


CONTROLLER, RAYLET = "TrainController", "raylet/raylet"


def kill_worker(storm: "Storm", dice: random.Random) -> bool:
    """As a program that runs out of memory."""
    return bool(_signal_one(storm, dice, WORKER, signal.SIGKILL))


def kill_controller(storm: "Storm", dice: random.Random) -> bool:
    """The process that holds the workers."""
    return bool(_signal_one(storm, dice, CONTROLLER, signal.SIGKILL))


def kill_driver(storm: "Storm", dice: random.Random) -> bool:
    """Kill `planner run`. It is started again, as a supervisor would."""
    del dice
    return storm.end_driver(signal.SIGKILL)


def interrupt_driver(storm: "Storm", dice: random.Random) -> bool:
    """Ctrl-C, and the same command again."""
    del dice
    return storm.end_driver(signal.SIGINT)


def _stop_for(storm: "Storm", dice: random.Random, text: str, seconds: list[float]) -> bool:
    """SIGSTOP a process, and SIGCONT it later if it still lives."""
    if not (pid := _signal_one(storm, dice, text, signal.SIGSTOP)):
        return False
    storm.later(dice.choice(seconds), lambda: _continue(pid))
    return True


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def stop_worker(storm: "Storm", dice: random.Random) -> bool:
    """A hang: for a moment, or for good. While a group starts, it is for less than the 15 minutes that it may take."""
    return _stop_for(storm, dice, WORKER, [5, 1000] if storm.is_training else [5, 30])


def stop_raylet(storm: "Storm", dice: random.Random) -> bool:
    """A node that does not answer, while its worker trains."""
    node = storm.any_node(dice)
    pids = storm.hosts.pids(RAYLET, node) if node else []
    if not pids:
        return False
    os.kill(pids[0], signal.SIGSTOP)
    storm.later(dice.choice([2, 20]), lambda: _continue(pids[0]))
    return True


def stop_controller(storm: "Storm", dice: random.Random) -> bool:
    """Stop the controller, so that nothing is decided for a while."""
    return _stop_for(storm, dice, CONTROLLER, [3, 20])


def partition(storm: "Storm", dice: random.Random) -> bool:
    """No packets for a while: shorter and longer than it takes the cluster to give a node up."""
    if not (node := storm.any_node(dice)):
        return False
    storm.hosts.cut(node)
    storm.later(dice.choice([1, 3, 20]), lambda: node in storm.hosts.nodes and storm.hosts.mend(node))
    return True


def fill_disk(storm: "Storm", dice: random.Random) -> bool:
    """No byte is left for the run's folder."""
    ballast = storm.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        usage = os.statvfs(storm.disk)
        with contextlib.suppress(OSError):  # at once, so that a write in flight does not end before
            os.posix_fallocate(file.fileno(), 0, max(usage.f_bavail * usage.f_frsize - (1 << 20), 1))
        file.seek(0, os.SEEK_END)
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    storm.later(dice.choice([5, 20]), lambda: ballast.unlink(missing_ok=True))
    return True


def kill_writer(storm: "Storm", dice: random.Random) -> bool:
    """Kill a worker that is writing its part of a commit. Its file stays torn, and the commit has no manifest."""
    if not (write := next_write(storm, dice)):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(write.pid, signal.SIGKILL)
    until_s = time.monotonic() + _DEAD_S
    while Path(f"/proc/{write.pid}").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    # A worker that was done with its file has removed what it said. A dead one cannot.
    said = storm.writing / str(write.pid)
    hit = said.exists() and Path(said.read_text()).parent.name == write.commit and not storm.is_durable(write.commit)
    storm.hits["worker killed in a background write"] += hit
    return True


def fill_disk_in_write(storm: "Storm", dice: random.Random) -> bool:
    """No byte is left while a commit is being written."""
    if not (write := next_write(storm, dice)) or not fill_disk(storm, dice):
        return False
    storm.hits["disk full in a background write"] += not storm.is_durable(write.commit)
    return True


def freeze_disk_in_write(storm: "Storm", dice: random.Random) -> bool:
    """Nothing can be written for some seconds, while a commit is being written: for longer than that takes."""
    if not (write := next_write(storm, dice)):
        return False
    with _frozen(storm):
        before = write in writes(storm)
        storm.pause(storm.write_s + dice.choice([2.0, 8.0]), touches_disk=False)
        storm.hits["disk frozen in a background write"] += before and write in writes(storm)
    return True


def freeze_disk(storm: "Storm", dice: random.Random) -> bool:
    """Nothing can be written for some seconds (fsfreeze)."""
    with _frozen(storm):
        storm.pause(dice.choice([2.0, 8.0]), touches_disk=False)
    return True


def slow_disk(storm: "Storm", dice: random.Random) -> bool:
    """For 20 s a write takes up to half a second: frozen, and free for a moment, again and again."""
    del dice
    for _ in range(33):
        with _frozen(storm):
            time.sleep(0.5)
        storm.pause(0.1)
    return True


@contextlib.contextmanager
def _frozen(storm: "Storm") -> Iterator[None]:
    subprocess.run(["fsfreeze", "--freeze", str(storm.disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(storm.disk)], check=True)


def _newest_files(storm: "Storm") -> list[Path]:
    """Of the newest commit, if another one is left that was not harmed: with none, a run is refused, and rightly."""
    whole = [name for name in storm.run.commits() if name not in storm.harmed]
    folders = [folder for name in whole if (folder := storm.folder / "checkpoints" / name).is_dir()]
    if len(folders) < 2:
        return []
    storm.harmed.add(folders[-1].name)
    return sorted(folders[-1].glob("*"))


def corrupt_checkpoint(storm: "Storm", dice: random.Random) -> bool:
    """A byte of the newest commit is another one, and then the workers begin again."""
    files = [path for path in _newest_files(storm) if path.stat().st_size]
    if not files:
        return False
    path = dice.choice(files)
    with path.open("r+b") as file:
        at = dice.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x55]))
    return _restart_workers(storm, dice)


def halve_checkpoint(storm: "Storm", dice: random.Random) -> bool:
    """Half of the newest commit's files are gone."""
    files = _newest_files(storm)
    for path in files[::2]:
        path.unlink(missing_ok=True)
    return bool(files) and _restart_workers(storm, dice)


def _restart_workers(storm: "Storm", dice: random.Random) -> bool:
    """By one killed worker. They all begin from memory, or else from the newest commit that is whole."""
    if dice.random() < 0.5:
        kill_all_keepers(storm)
    _signal_one(storm, dice, WORKER, signal.SIGKILL)
    return True


def second_driver(storm: "Storm", dice: random.Random) -> bool:
    """The same command twice at once: the second one is turned away."""
    del dice
    return storm.try_second_driver()


FAULTS = (
    Fault(name="node added", act=add),
    Fault(name="notice of 1 to 30 s", act=drain),
    Fault(name="node killed", act=kill_node),
    Fault(name="worker killed", act=kill_worker),
    Fault(name="controller killed", act=kill_controller),
    Fault(name="driver killed", act=kill_driver),
    Fault(name="driver interrupted", act=interrupt_driver),
    Fault(name="worker stopped (SIGSTOP)", act=stop_worker),
    Fault(name="node stopped (SIGSTOP)", act=stop_raylet),
    Fault(name="controller stopped (SIGSTOP)", act=stop_controller),
    Fault(name="partition", act=partition, needs="network"),
    Fault(name="disk full", act=fill_disk, needs="disk"),
    Fault(name="disk frozen", act=freeze_disk, needs="disk"),
    Fault(name="disk slow", act=slow_disk, needs="disk"),
    Fault(name="worker killed in a background write", act=kill_writer, has_aim=True),
    Fault(name="disk full in a background write", act=fill_disk_in_write, needs="disk", has_aim=True),
    Fault(name="disk frozen in a background write", act=freeze_disk_in_write, needs="disk", has_aim=True),
    Fault(name="keeper killed", act=kill_keeper),
    Fault(name=BOTH_LOST, act=lose_both_copies, has_aim=True),
    Fault(name=IN_HAND_OVER, act=die_in_hand_over, has_aim=True),
    Fault(name=SHORT, act=shorten_memory, has_aim=True),
    Fault(name="newest checkpoint corrupted", act=corrupt_checkpoint),
    Fault(name="newest checkpoint half deleted", act=halve_checkpoint),
    Fault(name="second driver", act=second_driver),
)
