"""Which worker counts a cluster can hold exactly when all its nodes are in use, and the fewest nodes for each count."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cluster.nodes import Cluster
from planner.plan import Resources, workers_on_node
from planner.plan.factory import MAX_WORKERS

# Real weights are far lower: 65,536 nodes of weight 301.
_OUT_OF_REACH = 1 << 40
# Packs a weight and a place into one number, so that a minimum also gives its place.
_PLACES = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Mix:
    """A combination of nodes from the groups of a cluster."""

    nodes: tuple[tuple[int, str], ...]
    """(number of nodes, name of their group), in the file's order. Only groups that have room for workers."""
    num_workers: int
    """number of workers that fit on them"""


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """A group that has room for workers: what one step adds, and the range of its steps."""

    name: str
    num_nodes: int
    num_workers: int
    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The worker counts that a cluster can hold, up to 65,536.

    The fewest nodes for each count are a bounded change-making problem: one pass over all counts per group. A node has
    weight `1 + number of groups`. A group without obligatory nodes adds weight 1 once it is used. So of two mixes with
    equally many nodes, the one with fewer groups is chosen.
    """

    cluster: Cluster
    taken: Resources
    """what one worker takes"""

    @cached_property
    def _steps(self) -> tuple[_Steps, ...]:
        """The groups with room for workers, the head first."""
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
    def workers_on_a_node(self) -> dict[str, int]:
        """Name of a group or of the head -> the workers that fit on one node. The most, if two have one name."""
        room: dict[str, int] = {}
        for group in (self.cluster.head, *self.cluster.groups):
            room[group.name] = max(room.get(group.name, 0), workers_on_node(group.resources, self.taken))
        return room

    @property
    def _spare_nodes(self) -> int:
        """Nodes that may be added when every group has its `min_nodes`."""
        return self.cluster.max_nodes - sum(group.min_nodes for group in self.cluster.groups)

    @property
    def _base(self) -> int:
        """Workers that fit when every group has its `min_nodes`."""
        return sum(step.least * step.num_workers for step in self._steps)

    @cached_property
    def _passes(self) -> tuple["_Pass", ...]:
        """One pass per group, in order: what this group and the groups before it can add to the base."""
        spare = min(self._spare_nodes, MAX_WORKERS)
        most = sum(min(step.most - step.least, spare // step.num_nodes) * step.num_workers for step in self._steps)
        limit = max(min(most, MAX_WORKERS - self._base), 0)
        weights, passes = _first_weights(limit), []
        for step in self._steps:
            span = min(step.most - step.least, spare // step.num_nodes)
            passes.append(_with_group(weights, step, span, 1 + len(self._steps)))
            weights = passes[-1].weights
        return tuple(passes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Every count of 1 or more workers that fills some mix of nodes exactly, in rising order."""
        if not self._steps:
            return ()
        too_heavy = (self._spare_nodes + 1) * (1 + len(self._steps))
        added = (self._passes[-1].weights < too_heavy).nonzero()[0].tolist()
        return tuple(self._base + extra for extra in added if self._base + extra)

    def within(self, least: int, most: int) -> list[int]:
        """The counts that a job with `least` to `most` workers can run on.

        `most` is among them where the cluster can hold more: the surplus stays idle.
        """
        counts = [count for count in self.counts if least <= count <= most]
        if self.counts and self.counts[-1] > most >= least and most not in counts:
            counts.append(most)
        return counts

    def mix(self, count: int) -> Mix:
        """The fewest nodes for `count` workers, or for the next larger count if none fits `count` exactly.

        Raises:
            ValueError: there is no room for `count` workers.
        """
        index = bisect_left(self.counts, count)
        if index == len(self.counts):
            raise ValueError(f"no room for {count} workers: the cluster can hold {self.counts}")
        num_workers = self.counts[index]
        nodes: dict[str, int] = {}
        for step, num_steps in zip(self._steps, self._steps_taken(num_workers - self._base), strict=True):
            nodes[step.name] = nodes.get(step.name, 0) + (step.least + num_steps) * step.num_nodes
        return Mix(nodes=tuple((num, name) for name, num in nodes.items() if num), num_workers=num_workers)

    def _steps_taken(self, added: int) -> list[int]:
        """For each group, the steps above its least. Together they add `added` workers."""
        taken: list[int] = []
        for step, done in zip(reversed(self._steps), reversed(self._passes), strict=True):
            taken.append(int(done.taken[added]))
            added -= taken[-1] * step.num_workers
        return taken[::-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pass:
    """For every number of workers added to the base: the least weight that adds them, and this group's steps in it."""

    weights: NDArray[np.int64]
    """shape `(limit + 1,)`"""
    taken: NDArray[np.int32]
    """shape `(limit + 1,)`"""


def _first_weights(limit: int) -> NDArray[np.int64]:
    """The weights without any group: 0 for no workers, all other counts out of reach."""
    weights = np.full(limit + 1, _OUT_OF_REACH, np.int64)
    weights[0] = 0
    return weights


def _with_group(weights: NDArray[np.int64], step: _Steps, span: int, node_weight: int) -> _Pass:
    """The least weights when up to `span` steps of one more group may add workers.

    Row p of a table has the counts `p * num_workers + r`, so counts of one remainder r are in one column, a step apart.
    A level is the weight minus that of p steps. The best number of steps is at the least level of `span` rows above.
    """
    width = min(step.num_workers, len(weights))
    rows = -(-len(weights) // width)
    places = np.arange(rows, dtype=np.int64)[:, None]
    table = np.full(rows * width, _OUT_OF_REACH, np.int64)
    table[: len(weights)] = weights
    per_step = step.num_nodes * node_weight
    levels = table.reshape(rows, width) - places * per_step
    # Of equal levels, the lowest row wins: it has the fewest steps.
    least = _least_of_rows_above(levels * _PLACES + (_PLACES - 1 - places), span)
    found, place = least >> 17, _PLACES - 1 - (least & (_PLACES - 1))
    candidate = (found + places * per_step + (0 if step.least else 1)).reshape(-1)[: len(weights)]
    is_better = candidate < weights
    taken = np.where(is_better, (places - place).reshape(-1)[: len(weights)], 0)
    return _Pass(weights=np.where(is_better, candidate, weights), taken=taken.astype(np.int32))


def _least_of_rows_above(table: NDArray[np.int64], span: int) -> NDArray[np.int64]:
    """For each row, the minimum of the `span` rows above it in each column. Very large where there is no row above.

    In blocks of `span` rows, each window is the end of one block and the beginning of the next. So two running minima
    give the minimum of every window (van Herk 1992, Gil and Werman 1993).
    """
    rows, width = table.shape
    least = np.full((rows, width), _OUT_OF_REACH * _PLACES, np.int64)
    span = min(span, rows)
    if not span:
        return least
    blocks = -(-rows // span)
    padded = np.full((blocks * span, width), _OUT_OF_REACH * _PLACES, np.int64)
    padded[:rows] = table
    of_blocks = padded.reshape(blocks, span, width)
    down = np.minimum.accumulate(of_blocks, axis=1).reshape(-1, width)
    up = np.minimum.accumulate(of_blocks[:, ::-1], axis=1)[:, ::-1].reshape(-1, width)
    least[1:] = down[: rows - 1]
    least[span:] = np.minimum(least[span:], up[: rows - span])
    return least
