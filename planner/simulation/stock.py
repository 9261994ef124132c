"""Policies to compare with: Ray Train's own elastic policy, and a fixed number of workers."""

import math

from planner.simulation.engine import Run

_EVERY_S = 60.0
"""between two looks of Ray Train 2.60 (`ScalingConfig.elastic_resize_monitor_interval_s`)"""


class Stock:
    """Ray Train's elastic policy: it looks every 60 s, and starts again from the last commit if nodes have changed.

    It knows no notices. Nodes that have one count until they go.
    """

    def __init__(self, name: str = "stock", size: int = 0) -> None:
        """`size`: waits for exactly so many workers. 0: takes all that there are."""
        self.name, self._size = name, size
        self._looked_s = -math.inf

    def failed(self, run: Run, dead: frozenset[str]) -> None:
        """Do nothing. The next look starts a group."""

    def look(self, run: Run) -> float:
        """Start a group if there is none, or if it has the wrong size. Return when the next look is due."""
        target = self._target(run)
        if run.phase == "idle":
            if target >= run.speed.workers.least:
                self._start(run, target)
            return math.inf
        if run.phase in ("train", "commit") and run.now_s - self._looked_s >= _EVERY_S:
            self._looked_s = run.now_s
            if target >= run.speed.workers.least and target != len(run.group):
                self._start(run, target)
        if target == len(run.group):
            return math.inf
        return max(self._looked_s + _EVERY_S, run.now_s + 1.0)

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
        self._looked_s = run.now_s
        run.tell("starts")
