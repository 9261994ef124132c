"""What a simulation assumes of the machines: seconds of a step, of a resize, of a commit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from planner.plan import BatchSizes, WorkerRange, make_plan
from planner.simulation.lives import Lives


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that changes take."""

    restart_s: float = 60.0
    """from the end of one group to the first step of the next one: training stands still"""
    save_s: float = 15.0
    """for which a commit holds training up"""
    lead_s: float = 20.0
    """for which newcomers start beside the group, which trains on. planner alone does that"""
    detect_s: float = 5.0
    """from a node's loss to the end of its group"""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a job is at each number of workers."""

    sizes: BatchSizes
    workers: WorkerRange
    node_workers: int = 1
    """workers that a node holds"""
    seconds: Callable[[int], float]
    """world size -> seconds of a step"""
    peak: int
    """the most nodes at any time"""

    @cached_property
    def steps_s(self) -> tuple[float, ...]:
        """Seconds of a step at each world size that can occur. The first entry is of no use."""
        most = min(self.workers.most, max(self.peak * self.node_workers, 1))
        return (0.0, *(self.seconds(size) for size in range(1, most + 1)))

    def places(self, nodes: int) -> int:
        """Workers that so many nodes hold, as far as the job takes them."""
        return min(nodes * self.node_workers, self.workers.most)

    @cached_property
    def _best(self) -> tuple[float, ...]:
        """Steps per second with at most so many workers."""
        best = [0.0]
        for size, step_s in enumerate(self.steps_s[1:], start=1):
            best.append(max(best[-1], 1 / step_s if size >= self.workers.least else 0.0))
        return tuple(best)

    def best(self, nodes: int) -> float:
        """Steps per second with so many nodes, at the best number of workers. 0 if there are too few."""
        return self._best[min(self.places(nodes), len(self._best) - 1)]


def ideal_steps(lives: Lives, speed: Speed) -> float:
    """Steps of a run that always uses all nodes, and that neither resizes nor commits nor loses anything."""
    return sum((end_s - start_s) * speed.best(nodes) for start_s, end_s, nodes in lives.spans)


def by_cost(sizes: BatchSizes, most: int, step_s: float) -> Callable[[int], float]:
    """World size -> seconds of a step, by the plan's cost alone, if it takes `step_s` with `most` workers."""
    sample_s = step_s / make_plan(sizes, most).work
    return lambda size: sample_s * make_plan(sizes, size).work
