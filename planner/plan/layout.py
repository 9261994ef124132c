"""The layout of one global batch over workers and rounds, computed and never tabulated.

The words: G samples per optimizer step, W workers, A rounds (forward/backward passes per step, equal on every
worker because FSDP's collectives need it), m the cap on a micro-batch.

    used workers    U = min(W, G)                    the other W - U run zero-weight ghosts
    shares          s_r = G // U + [r < G % U]       contiguous, so worker r begins at r * (G // U) + min(r, G % U)
    rounds          A = ceil(s_0 / m)                the fewest that keep every micro-batch within m
    slots           c_ra = s_r // A + [a < s_r % A]  larger slots first

FSDP synchronises every round, so a step takes the sum over rounds of the round's largest slot. Every c_ra is at
most c_0a, and the slots of worker 0 add up to s_0 = ceil(G / U): the cost is ceil(G / W), the least possible at
sample granularity. (Spreading flatly over all W * A slots does not reach it: G=32, W=15, m=2 would cost 4.)
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

# Goes into the digest: another arithmetic above is another plan.
LAYOUT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who computes which samples of a global batch, in which round. Made by `planner.plan.choose`.

    Memory is O(1): the answers for a rank are computed from these four numbers.
    """

    global_batch: int
    """G: samples per optimizer step"""
    world_size: int
    """W: workers in the group"""
    max_micro: int
    """the cap on a micro-batch that the job set, in samples"""
    accumulation_steps: int
    """A: forward/backward rounds per optimizer step, the same on every worker"""
    mode: Literal["balanced"] = "balanced"

    @property
    def workers_used(self) -> int:
        """Workers that have samples; the rest run zero-weight ghosts."""
        return min(self.world_size, self.global_batch)

    @property
    def workers_idle(self) -> int:
        """Workers without a sample."""
        return self.world_size - self.workers_used

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """Workers grouped by share, larger first: `(number of workers, samples each)`."""
        base, larger = divmod(self.global_batch, self.workers_used)
        groups = ((larger, base + 1), (self.workers_used - larger, base), (self.workers_idle, 0))
        return tuple((count, samples) for count, samples in groups if count)

    @property
    def step_cost(self) -> int:
        """Sum over rounds of the round's largest slot, in samples: `ceil(G / W)`."""
        return _ceil_div(self.global_batch, self.workers_used)

    @property
    def max_micro_batch(self) -> int:
        """The largest micro-batch of the plan, in samples; at most `max_micro`."""
        return _ceil_div(self.step_cost, self.accumulation_steps)

    @property
    def efficiency(self) -> float:
        """`(G / W) / step_cost` over the workers granted: the fraction of their time that computes samples."""
        return self.global_batch / (self.world_size * self.step_cost)

    @property
    def fewest_workers_as_fast(self) -> int:
        """The least world size with the same step cost: `ceil(G / step_cost)`."""
        return _ceil_div(self.global_batch, self.step_cost)

    def share(self, rank: int) -> range:
        """The half-open range of the global batch that `rank` computes; empty for an idle worker.

        Raises:
            IndexError: `rank` is not in `[0, world_size)`.
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is not in [0, {self.world_size})")
        base, larger = divmod(self.global_batch, self.workers_used)
        if rank >= self.workers_used:
            return range(self.global_batch, self.global_batch)
        start = rank * base + min(rank, larger)
        return range(start, start + base + (rank < larger))

    def micro_batch(self, rank: int, accumulation_step: int) -> range:
        """The half-open range of the global batch that `rank` computes in one round; may be empty (a ghost).

        Raises:
            IndexError: `rank` or `accumulation_step` is out of range.
        """
        if not 0 <= accumulation_step < self.accumulation_steps:
            raise IndexError(f"accumulation step {accumulation_step} is not in [0, {self.accumulation_steps})")
        share = self.share(rank)
        slot, larger = divmod(len(share), self.accumulation_steps)
        start = share.start + accumulation_step * slot + min(accumulation_step, larger)
        return range(start, start + slot + (accumulation_step < larger))

    def micro_batches(self, rank: int) -> list[range]:
        """All rounds of `rank`, in order: `accumulation_steps` half-open ranges."""
        return [self.micro_batch(rank, step) for step in range(self.accumulation_steps)]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name this plan; equal on every worker, in the ledger and in the dry run."""
        numbers = (self.global_batch, self.world_size, self.max_micro, self.accumulation_steps)
        text = f"layout {LAYOUT_VERSION} {self.mode} {numbers}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know before paying for this world size, one sentence each."""
        return tuple(filter(None, (self._idle(), self._communication_bound(), self._fewer_are_as_fast())))

    def _idle(self) -> str:
        if not self.workers_idle:
            return ""
        return (
            f"{self.workers_idle} of {self.world_size} workers idle: a global batch of {self.global_batch} "
            f"feeds at most {self.global_batch}"
        )

    def _communication_bound(self) -> str:
        if self.world_size == 1 or self.max_micro_batch >= 2:
            return ""
        # More memory per sample helps only where the cap, not the share, makes the micro-batch small.
        raise_cap = "raise max_micro, use bf16 or activation checkpointing, or " if self.step_cost > 1 else ""
        return f"micro-batch {self.max_micro_batch} is communication-bound under FSDP: {raise_cap}use fewer workers"

    def _fewer_are_as_fast(self) -> str:
        fewest = self.fewest_workers_as_fast
        if fewest == self.world_size:
            return ""
        return f"{fewest} workers are just as fast" if fewest > 1 else "1 worker is just as fast"


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
