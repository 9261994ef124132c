"""Faults of the memory that resizes and deaths depend on: keepers and their copies, and the hand-over itself.

Keepers are found as processes of this storm's own nodes, which each storm knows by session or network namespace.
"""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_witness import Rank, newest_rank

if TYPE_CHECKING:
    from storm import Storm

WORKER, KEEPER = "RayTrainWorker", "KeeperActor"
PHASES = ("copying", "copied", "loading")
"""of a hand-over in memory, as chaos_loop.py names them"""
BOTH_LOST, IN_HAND_OVER, SHORT = "both copies lost", "death during a hand-over", "host memory short"
MEMORY_FAULTS = (BOTH_LOST, IN_HAND_OVER, SHORT)
# A notice is heard within seconds, and a new group takes tens of seconds to start on a busy machine.
_NO_HAND_OVER_S = 60.0
_NO_START_S = 90.0
_TRIES = 3
_POLL_S = 0.02


def _kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_keeper(storm: "Storm", dice: random.Random) -> bool:
    """SIGKILL one node's keeper. Its workers go on, and the copies that it held are lost."""
    pids = [pid for node in storm.hosts.nodes for pid in storm.hosts.pids(KEEPER, node)]
    if pids:
        _kill(dice.choice(pids))
    return bool(pids)


def kill_all_keepers(storm: "Storm") -> None:
    """Nothing is left in memory."""
    _kill(*(pid for node in storm.hosts.nodes for pid in storm.hosts.pids(KEEPER, node)))


def lose_both_copies(storm: "Storm", dice: random.Random) -> bool:
    """Kill the keepers of two nodes that are neighbours in the ring, and a worker: one rank has no copy left.

    It hit if the next group did not resume from memory.
    """
    if not (ring := _ring_with_copies(storm)):
        return False
    at = dice.randrange(len(ring))
    both = {ring[at], ring[(at + 1) % len(ring)]}
    _kill(*(pid for node in both for pid in storm.hosts.pids(KEEPER, node)))
    before = storm.resumes.total()
    _kill(*storm.hosts.pids(WORKER, ring[at])[:1])
    from_storage = storm.resumes["storage"]
    storm.pause_until(lambda: storm.resumes.total() > before, _NO_START_S)
    storm.hits[BOTH_LOST] += storm.resumes["storage"] > from_storage
    return True


def _ring_with_copies(storm: "Storm") -> list[str]:
    """The nodes of a group that makes copies, by rank. A group without keepers is ended: the next one has some."""
    for _ in range(_TRIES):
        storm.until_steps(30)  # after a commit, copies of earlier groups are gone
        group = ranks(storm)
        if group and all(rank.is_kept for rank, _ in group):
            return [node for _, node in group]
        before = storm.resumes.total()
        _kill(*(pid for _, node in group[:1] for pid in storm.hosts.pids(WORKER, node)))
        storm.pause_until(lambda before=before: storm.resumes.total() > before, _NO_START_S)
    return []


def ranks(storm: "Storm") -> list[tuple[Rank, str]]:
    """The group that trains, as its processes say: workers and their nodes by rank. Empty while that is not whole."""
    said = [
        (rank, node)
        for node in storm.hosts.nodes
        for pid in storm.hosts.pids(WORKER, node)
        if (rank := newest_rank(storm.witness, pid)) is not None
    ]
    newest = max((rank.generation for rank, _ in said), default=0)
    group = sorted(((rank, node) for rank, node in said if rank.generation == newest), key=lambda each: each[0].rank)
    return group if group and len(group) == group[0][0].world_size else []


def die_in_hand_over(storm: "Storm", dice: random.Random) -> bool:
    """Give a node notice, and kill a worker or its node in the midst of the hand-over that follows.

    It hit if a worker was in the hand-over when it was killed.
    """
    phase = dice.choice(PHASES)
    with _gate(storm, phase):
        for _ in range(_TRIES):
            if not _begin_hand_over(storm, dice):
                continue
            pid = dice.choice(_at_gate(storm) or [0])
            if not pid:
                continue
            node = storm.hosts.node_of(pid)
            if dice.random() < 0.5 and node:
                storm.hosts.kill(node)
            else:
                _kill(pid)
            # A worker that went on has removed what it said. A dead one cannot.
            storm.hits[IN_HAND_OVER] += (storm.witness / "at_gate" / str(pid)).exists()
            storm.phases[phase] += 1
            return True
    return False


def _begin_hand_over(storm: "Storm", dice: random.Random) -> bool:
    """Give a node of the group notice. False if the stop was durable: no keeper was known when the group began."""
    storm.until_steps(30)  # without a commit since the last one, too
    while len(storm.hosts.nodes) < 2:
        storm.hosts.add()
    trained = [node for node in storm.hosts.nodes if storm.hosts.pids(WORKER, node)]
    if not trained:
        return False
    leaving = dice.choice(sorted(trained, key=lambda node: storm.hosts.nodes[node].number))
    before = storm.resumes.total()
    storm.hosts.drain(leaving, 30)
    storm.kill_later(leaving, 30)
    storm.pause_until(lambda: bool(_at_gate(storm)) or storm.resumes.total() > before, _NO_HAND_OVER_S, every_s=_POLL_S)
    return bool(_at_gate(storm))


def _at_gate(storm: "Storm") -> list[int]:
    pids = sorted(int(marker.name) for marker in (storm.witness / "at_gate").iterdir())
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@contextlib.contextmanager
def _gate(storm: "Storm", phase: str) -> Iterator[None]:
    for left_behind in (storm.witness / "at_gate").iterdir():
        left_behind.unlink(missing_ok=True)
    gate = storm.witness / "gate"
    hidden = gate.with_suffix(".new")
    hidden.write_text(phase)
    hidden.rename(gate)
    try:
        yield
    finally:
        gate.unlink()


def shorten_memory(storm: "Storm", dice: random.Random) -> bool:
    """No keeper has room for a new place, and then a group begins that needs some.

    It hit if a worker of that group was refused. A group that knows no keeper asks for no room.
    """
    short, refused = storm.witness / "short", storm.refusals
    short.touch()
    try:
        for _ in range(_TRIES):
            before = storm.resumes.total()
            pids = [pid for node in storm.hosts.nodes for pid in storm.hosts.pids(WORKER, node)]
            _kill(*([dice.choice(pids)] if pids else []))
            storm.pause_until(lambda before=before: storm.resumes.total() > before, _NO_START_S)
            storm.until_steps(dice.choice([5, 30]))
            if storm.refusals > refused:
                break
    finally:
        short.unlink()
    storm.hits[SHORT] += storm.refusals > refused
    return True
