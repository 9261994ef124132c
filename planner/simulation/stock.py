"""Policies to compare with: Ray Train's own elastic policy, and a fixed number of workers."""

import math

from planner.simulation.engine import Run

_EVERY_S = 60.0
"""between two looks of Ray Train 2.60 (`ScalingConfig.elastic_resize_monitor_interval_s`)"""
_ROUNDING = 1e-6


class Stock:
    """Ray Train's elastic policy: it looks every 60 s, and starts again from the last commit if nodes have changed.

    It knows no notices. Nodes that have one count until they go.
    """

    def __init__(self, name: str = "stock", size: int = 0) -> None:
        """`size`: waits for exactly so many workers. 0: takes all that there are."""
        self.name, self._size = name, size
        self._looked_s = -math.inf

    def losing(self, run: Run) -> None:
        """Do nothing."""

    def failed(self, run: Run, dead: frozenset[str]) -> None:
        """Do nothing. The next look starts a group."""

    def look(self, run: Run) -> float:
        """Start a group if there is none, or if it has the wrong size. Return when the next look is due."""
        target = self._target(run)
        if run.phase == "idle":
            if target >= run.speed.workers.least:
                self._start(run, target)
            return math.inf
        if run.phase == "detect":
            return math.inf  # it is asked again after that, which takes years where a clock was set
        if self._is_time(run) and target >= run.speed.workers.least and target != len(run.group):
            self._start(run, target)
        return math.inf if target == len(run.group) else self._looked_s + _EVERY_S

    def _is_time(self, run: Run) -> bool:
        """Whether it looks right now. It also looks while nothing happens, which changes when it looks next."""
        if run.phase not in ("train", "commit"):
            return False
        times = math.floor((run.now_s - self._looked_s) / _EVERY_S + _ROUNDING)
        self._looked_s += max(times, 0) * _EVERY_S
        return times >= 1 and run.now_s - self._looked_s <= _ROUNDING

    def _target(self, run: Run) -> int:
        places = run.speed.places(len(run.alive))
        if not self._size:
            return places
        return self._size if places >= self._size else 0

    def _start(self, run: Run, target: int) -> None:
        """Start on nodes of the last group first."""
        nodes = sorted(run.alive, key=lambda node: node not in run.group)
        places = [node for node in nodes for _ in range(run.speed.node_workers)]
        run.start(places[:target], planned=not run.group)
        # It does not look while a group starts.
        self._looked_s = run.now_s + max(run.costs.restart_s - _EVERY_S, 0.0)
        run.tell("starts")
