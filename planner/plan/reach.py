"""Which worker counts a cluster can reach when all its nodes are in use, and the fewest nodes behind each."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from functools import cached_property

from planner.cluster import Cluster
from planner.limits import MAX_WORKERS
from planner.plan.fit import Resources, workers_on_node

_OUT_OF_REACH = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Nodes that are there together."""

    nodes: tuple[tuple[int, str], ...]
    """(number of nodes, name of their group), in the file's order; only groups that have room for workers"""
    num_workers: int
    """as many workers have room on them"""


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """A group that has room for workers: what one of its steps adds, and how many steps there may be."""

    name: str
    num_nodes: int
    num_workers: int
    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The worker counts of a cluster, up to 65,536.

    The fewest nodes behind each count are a bounded change-making problem: one pass over all counts per group. A node
    weighs `1 + number of groups` and a group that the cluster would not have anyway 1, so that of two mixes of as
    many nodes the one of fewer kinds is taken.
    """

    cluster: Cluster
    taken: Resources
    """what one worker takes"""

    @cached_property
    def _steps(self) -> tuple[_Steps, ...]:
        """Of the groups with room for workers, the head first."""
        groups = [
            (group, workers_on_node(group.resources, self.taken)) for group in (self.cluster.head, *self.cluster.groups)
        ]
        return tuple(
            _Steps(
                name=group.name,
                num_nodes=group.nodes_per_step,
                num_workers=room * group.nodes_per_step,
                least=group.min_nodes // group.nodes_per_step,
                most=group.max_nodes // group.nodes_per_step,
            )
            for group, room in groups
            if room and group.max_nodes
        )

    @property
    def _spare_nodes(self) -> int:
        """Nodes that may be added when every group is as small as it gets."""
        return self.cluster.max_nodes - sum(group.min_nodes for group in self.cluster.groups)

    @property
    def _base(self) -> int:
        """Workers that have room when every group is as small as it gets."""
        return sum(step.least * step.num_workers for step in self._steps)

    @cached_property
    def _passes(self) -> tuple["_Pass", ...]:
        """One per group, in order: what it and the groups before it can add to the base."""
        spare = min(self._spare_nodes, MAX_WORKERS)
        most = sum(min(step.most - step.least, spare // step.num_nodes) * step.num_workers for step in self._steps)
        limit = max(min(most, MAX_WORKERS - self._base), 0)
        weights = [0] + [_OUT_OF_REACH] * limit
        passes = []
        for step in self._steps:
            passes.append(_with_group(weights, step, 1 + len(self._steps)))
            weights = passes[-1].weights
        return tuple(passes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Every count of workers that some mix of nodes has room for exactly, rising; 0 is not one."""
        if not self._steps:
            return ()
        too_heavy = (self._spare_nodes + 1) * (1 + len(self._steps))
        added = (extra for extra, weight in enumerate(self._passes[-1].weights) if weight < too_heavy)
        return tuple(self._base + extra for extra in added if self._base + extra)

    def within(self, least: int, most: int) -> list[int]:
        """The counts from `least` to `most` that a job can run on, which never takes more than `most` workers.

        `most` is among them where the cluster has more: what it has too many stays idle.
        """
        counts = [count for count in self.counts if least <= count <= most]
        if self.counts and self.counts[-1] > most >= least and most not in counts:
            counts.append(most)
        return counts

    def mix(self, count: int) -> Mix:
        """The fewest nodes with room for `count` workers, or for the least more that there can be.

        Raises:
            ValueError: there is no room for so many.
        """
        index = bisect_left(self.counts, count)
        if index == len(self.counts):
            raise ValueError(f"no room for {count} workers: the counts are {self.counts}")
        num_workers = self.counts[index]
        nodes: dict[str, int] = {}
        for step, num_steps in zip(self._steps, self._steps_taken(num_workers - self._base), strict=True):
            nodes[step.name] = nodes.get(step.name, 0) + (step.least + num_steps) * step.num_nodes
        return Mix(nodes=tuple((num, name) for name, num in nodes.items() if num), num_workers=num_workers)

    def _steps_taken(self, added: int) -> list[int]:
        """Steps beyond the least of each group, which together add so many workers."""
        taken: list[int] = []
        for step, done in zip(reversed(self._steps), reversed(self._passes), strict=True):
            taken.append(done.taken[added])
            added -= done.taken[added] * step.num_workers
        return taken[::-1]


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """For every number of workers added to the base: the least weight of it, and this group's steps in that."""

    weights: list[int]
    taken: list[int]


def _with_group(weights: list[int], step: _Steps, node_weight: int) -> _Pass:
    """The least weights when one more group may add workers.

    For each remainder, counts are `step.num_workers` apart; the best number of steps is the least of a window that
    slides over them (a queue of rising weights, each less the weight of the steps up to its place).
    """
    span, per_step = step.most - step.least, step.num_nodes * node_weight
    another_kind = 0 if step.least else 1
    best, taken = list(weights), [0] * len(weights)
    for remainder in range(min(step.num_workers, len(weights))):
        window: deque[tuple[int, int]] = deque()  # (place, weight at place 0)
        for place, count in enumerate(range(remainder, len(weights), step.num_workers)):
            if window and window[0][0] < place - span:
                window.popleft()
            if window and window[0][1] + place * per_step + another_kind < best[count]:
                best[count] = window[0][1] + place * per_step + another_kind
                taken[count] = place - window[0][0]
            if weights[count] < _OUT_OF_REACH:
                level = weights[count] - place * per_step
                while window and window[-1][1] >= level:
                    window.pop()
                window.append((place, level))
    return _Pass(weights=best, taken=taken)
