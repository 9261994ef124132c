"""One generation of `bench/copies.py` in a worker: real steps, with and without copies in turns, until it is killed."""

import os
import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

from _lines import write

from planner.job import Job
from planner.keeper.addresses import Address, Keepers
from planner.train import lifecycle
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.memory_copies import MemoryCopies
from planner.train.setup import Launch
from planner.train.world import cpu_device

SECRET = "bench-copies-0123456789"
# Both places of a worker are used once, and one of them again: a first copy goes into fresh memory.
_NUM_WARM_COPIES = 3
_FEWEST_WARM_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Script:
    """What one generation does after its warm-up."""

    rounds: int
    """of a block of steps without copies and one with them"""
    block_steps: int
    log: str
    """path of the file to which workers append lines"""

    def phase(self, measured_steps: int) -> str:
        """`off`, `on`, or `kill` after the last block. With `on` and `kill` copies are taken."""
        block = measured_steps // self.block_steps
        return "kill" if block >= 2 * self.rounds else ("off", "on")[block % 2]


class MeasuredCopies(MemoryCopies):
    """planner's copies with clocks, taken only in some phases of the script. Rank 0 decides."""

    script: Script
    commits: Any = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._steps = self._measured_steps = self._num_copies = 0
        self._stepped_s = 0.0
        self._phase = "warm-up"

    def is_due(self) -> bool:
        """As the pace says, or in the warm-up at every second step."""
        if self._phase == "warm-up":
            return self.copies.can_publish and self._steps % 2 == 1
        return self._phase != "off" and super().is_due()

    def copy(self, step: int, cursor: int) -> None:
        """With a clock."""
        began_s = time.monotonic()
        super().copy(step, cursor)
        self._num_copies += 1
        self._write("copy", step=step, seconds=time.monotonic() - began_s)

    def did_step(self, step: int) -> None:
        """After the gradients of a step."""
        now_s = time.monotonic()
        self._write("step", step=step, seconds=now_s - self._stepped_s, phase=self._phase, interval=self.pace.interval)
        self._stepped_s = now_s
        self._steps += 1
        if self._phase != "warm-up":
            self._measured_steps += 1
        if self._phase != "warm-up" or self._is_warm:
            self._phase = self.script.phase(self._measured_steps)

    @property
    def _is_warm(self) -> bool:
        """Whether all memory was used, and the commit with which a resumed generation begins is over."""
        is_quiet = MeasuredCopies.commits is None or not MeasuredCopies.commits.is_in_flight
        return is_quiet and self._steps >= _FEWEST_WARM_STEPS and self._num_copies >= _NUM_WARM_COPIES

    def _write(self, kind: str, **values: Any) -> None:
        write(self.script.log, kind, rank=self._world.rank, at_s=time.monotonic(), **values)


def steps_until_killed(
    rank: int, job: Job, url: str, nodes: tuple[str, ...], addresses: tuple[Address, ...], script: Script
) -> None:
    """Train. The caller kills this process."""
    write(script.log, "worker", rank=rank, pid=os.getpid())
    made: list[MeasuredCopies] = []

    def make(**arguments: Any) -> MeasuredCopies:
        made.append(MeasuredCopies(**arguments))
        return made[-1]

    def make_commits(**arguments: Any) -> Any:
        MeasuredCopies.commits = commits(**arguments)
        return MeasuredCopies.commits

    MeasuredCopies.script = script
    commits = lifecycle.Commits
    hooks = Hooks(
        observe=lambda step, _state, _work: made[-1].did_step(step),
        may_hold=lambda: True,
        keepers=lambda: Keepers(node=nodes[rank], addresses=addresses, secret=SECRET),
    )
    launch = Launch(job=job, url=url, launch_id="copies", keeper_secret=SECRET)
    with mock.patch.object(lifecycle, "MemoryCopies", make), mock.patch.object(lifecycle, "Commits", make_commits):
        train(launch, cpu_device, hooks)
