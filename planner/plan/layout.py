"""The arithmetic of plans: how each mode splits a global batch. Symbols are those of `planner.plan.plan`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from planner.plan.plan import Mode, Plan, ceil_div


@dataclass(frozen=True, kw_only=True)
class Balanced(Plan):
    """Every worker computes `floor(G/W)` samples or one more. No split of whole samples has a lower cost.

    used workers    U = min(W, G)                    the other W - U run ghosts
    shares          s_r = G // U + [r < G % U]       contiguous, so worker r begins at r * (G // U) + min(r, G % U)
    rounds          A = ceil(s_0 / m)                the fewest that keep every micro-batch within m
    slots           c_ra = s_r // A + [a < s_r % A]  larger slots first

    Every c_ra is at most c_0a, and the slots of worker 0 add up to s_0 = ceil(G / U): the cost is ceil(G / W).
    (An even spread over all W * A slots costs more: 4 with G=32, W=15, m=2.)
    """

    mode = "balanced"

    @property
    def workers_used(self) -> int:
        """U, `min(W, G)`."""
        return min(self.world_size, self.global_batch)

    @property
    def accumulation_steps(self) -> int:
        """A, `ceil(s_0 / m)`."""
        return ceil_div(self.step_cost, self.max_micro)

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """At most three groups: workers with the larger share, with the smaller one, and without samples."""
        base, larger = divmod(self.global_batch, self.workers_used)
        idle = self.world_size - self.workers_used
        groups = ((larger, base + 1), (self.workers_used - larger, base), (idle, 0))
        return tuple((count, samples) for count, samples in groups if count)

    @property
    def step_cost(self) -> int:
        """`ceil(G / W)`."""
        return ceil_div(self.global_batch, self.workers_used)

    @property
    def max_micro_batch(self) -> int:
        """`ceil(s_0 / A)`."""
        return ceil_div(self.step_cost, self.accumulation_steps)

    @property
    def fewest_workers_as_fast(self) -> int:
        """`ceil(G / cost)`."""
        return ceil_div(self.global_batch, self.step_cost)

    @property
    def num_micro_batches(self) -> int:
        """`U * A`, an upper bound: a share may be smaller than the number of rounds."""
        return self.workers_used * self.accumulation_steps

    def _samples(self, rank: int, accumulation_step: int) -> range:
        """A slice of the rank's contiguous share."""
        if rank >= self.workers_used:
            return range(self.global_batch, self.global_batch)
        base, larger = divmod(self.global_batch, self.workers_used)
        slot, longer = divmod(base + (rank < larger), self.accumulation_steps)
        start = rank * base + min(rank, larger) + accumulation_step * slot + min(accumulation_step, longer)
        return range(start, start + slot + (accumulation_step < longer))


@dataclass(frozen=True, kw_only=True)
class Bitwise(Plan):
    """The global batch is cut into C micro-batches that do not depend on W. Workers take them in turn.

    micro-batches   C = ceil(G / m)                  the fewest that fit
    their sizes     b_c = G // C + [c < G % C]       larger first, so c begins at c * (G // C) + min(c, G % C)
    rounds          A = ceil(C / W)
    in round a      worker r computes micro-batch c = a * W + r, or a ghost if c >= C

    A forward pass has the same samples at every W, so its gradient has the same bits at every W.
    """

    mode = "bitwise"

    @property
    def num_micro_batches(self) -> int:
        """C, `ceil(G / m)`."""
        return ceil_div(self.global_batch, self.max_micro)

    @property
    def workers_used(self) -> int:
        """`min(W, C)`."""
        return min(self.world_size, self.num_micro_batches)

    @property
    def accumulation_steps(self) -> int:
        """A, `ceil(C / W)`."""
        return ceil_div(self.num_micro_batches, self.world_size)

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """At most three groups: worker r has every W-th micro-batch from r on, and so every W-th larger micro-batch."""
        base, larger = divmod(self.global_batch, self.num_micro_batches)
        each, one_more = divmod(self.num_micro_batches, self.world_size)
        larger_each, larger_one_more = divmod(larger, self.world_size)
        edges = sorted({0, one_more, larger_one_more, self.world_size})
        groups: list[tuple[int, int]] = []
        for start, stop in pairwise(edges):
            samples = base * (each + (start < one_more)) + larger_each + (start < larger_one_more)
            groups.append((stop - start, samples))
        return tuple(groups)

    @property
    def step_cost(self) -> int:
        """`A * (G // C)`, plus one for each round whose first micro-batch is a larger one."""
        base, larger = divmod(self.global_batch, self.num_micro_batches)
        return self.accumulation_steps * base + ceil_div(larger, self.world_size)

    @property
    def max_micro_batch(self) -> int:
        """`ceil(G / C)`."""
        return ceil_div(self.global_batch, self.num_micro_batches)

    @property
    def fewest_workers_as_fast(self) -> int:
        """The smallest W that keeps both terms of the cost: the rounds, and those that begin with a larger one."""
        larger = self.global_batch % self.num_micro_batches
        fewest = ceil_div(self.num_micro_batches, self.accumulation_steps)
        return max(fewest, ceil_div(larger, ceil_div(larger, self.world_size))) if larger else fewest

    def _samples(self, rank: int, accumulation_step: int) -> range:
        """Micro-batch `accumulation_step * W + rank`."""
        index = accumulation_step * self.world_size + rank
        if index >= self.num_micro_batches:
            return range(self.global_batch, self.global_batch)
        base, larger = divmod(self.global_batch, self.num_micro_batches)
        start = index * base + min(index, larger)
        return range(start, start + base + (index < larger))


LAYOUTS: dict[int, Mapping[Mode, type[Plan]]] = {1: {"balanced": Balanced, "bitwise": Bitwise}}
"""version of the arithmetic -> mode -> the class of its plans. Older versions stay, for audits."""
