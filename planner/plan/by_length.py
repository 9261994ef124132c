"""Plans whose micro-batches follow from the lengths of a step's samples (`batch.max_tokens`). Layout version 2.

A plan has what is fixed for a generation: G, W and both caps. Which worker computes which samples is decided anew for
each step, from the lengths of its samples alone (`planner.plan.assignment`), so every worker and every audit finds the
same. Neither the samples of a step nor its gradient depend on it.

What a plan says without lengths (rounds, shares, cost) is that of samples of equal length below the cap on tokens.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.plan.assignment import Assignment, SampleLengths, assign_balanced, assign_bitwise
from planner.plan.layout import Balanced, Bitwise
from planner.plan.plan import Mode, Plan

BY_LENGTH_LAYOUT = 2
"""version of the arithmetic of new plans by length"""


@dataclass(frozen=True, kw_only=True)
class ByLength(Plan):
    """A plan that assigns samples by their lengths."""

    max_tokens: int
    """the cap on a micro-batch in tokens, without padding"""
    attention_at: int | None
    """the length at which attention costs a sample as much as all else. None: a sample costs its tokens"""
    layout_version: int = BY_LENGTH_LAYOUT

    def assignment(self, tokens: Sequence[int], squares: Sequence[int]) -> Assignment:
        """Who computes which samples of a step, in which round.

        Args:
            tokens: of each of the G samples, in the order of their positions.
            squares: the sum over each sample's documents of the square of their length.

        Raises:
            PlanError: a sample has more than `max_tokens` tokens.
        """
        return self._assigned(SampleLengths(tokens=tuple(tokens), costs=self.costs(tokens, squares)))

    def costs(self, tokens: Sequence[int], squares: Sequence[int]) -> tuple[int, ...]:
        """What each of some samples costs, of the tokens and squares of `assignment`. The unit is the same at any W."""
        if self.attention_at is None:
            return tuple(tokens)
        return tuple(count * self.attention_at + square for count, square in zip(tokens, squares, strict=True))

    def largest_round(self, step_cost: float) -> float:
        """As `Plan.largest_round`. A round holds up to `max_tokens`, and no more than one worker with all samples."""
        if not step_cost:
            return super().largest_round(step_cost)
        (most,) = self.costs([self.max_tokens], [self.max_tokens**2])
        return min(most * self.workers_used / step_cost, self.workers_used)

    def splits_like(self, other: Plan) -> bool:
        """As `Plan.splits_like`. Both caps may decide."""
        return self.digest == other.digest

    @abstractmethod
    def _assigned(self, lengths: SampleLengths) -> Assignment:
        """By the rule of the mode."""

    @property
    def most_micro_batches(self) -> int:
        """G: each sample may need a micro-batch of its own."""
        return self.global_batch

    @cached_property
    def digest(self) -> str:
        """16 hex digits over what is fixed for a generation."""
        numbers = (self.global_batch, self.world_size, self.max_micro, self.max_tokens, self.attention_at or 0)
        return hashlib.sha256(f"layout {self.layout_version} {self.mode} {numbers}".encode()).hexdigest()[:16]

    def _samples(self, rank: int, accumulation_step: int) -> range:
        raise TypeError(f"worker {rank}, round {accumulation_step}: micro-batches follow from lengths (`assignment`)")


@dataclass(frozen=True, kw_only=True)
class BalancedByLength(ByLength, Balanced):
    """Micro-batches of about equal cost within each round."""

    @property
    def work(self) -> float:
        """`G / U`: tokens are spread over workers more evenly than whole samples are."""
        return self.global_batch / self.workers_used

    @property
    def fewest_workers_as_fast(self) -> int:
        """All that have samples: each has fewer tokens than with one worker less."""
        return self.workers_used

    def _assigned(self, lengths: SampleLengths) -> Assignment:
        return assign_balanced(lengths, self.world_size, max_micro=self.max_micro, max_tokens=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class BitwiseByLength(ByLength, Bitwise):
    """Micro-batches that do not depend on W. Workers take them in turn.

    There are at least `ceil(G / m)` of them, and more where the cap on tokens is the tighter one. Only lengths tell.
    So no worker that could have one is taken to be idle: with a high `max_micro`, one worker alone would be used.
    """

    @property
    def workers_used(self) -> int:
        """`min(W, G)`: each sample may need a micro-batch of its own."""
        return min(self.world_size, self.global_batch)

    @property
    def work(self) -> float:
        """`G / U`, where enough micro-batches follow from the lengths."""
        return self.global_batch / self.workers_used

    @property
    def fewest_workers_as_fast(self) -> int:
        """All that may have samples."""
        return self.workers_used

    def _assigned(self, lengths: SampleLengths) -> Assignment:
        return assign_bitwise(lengths, self.world_size, max_micro=self.max_micro, max_tokens=self.max_tokens)


def placement(rank: int, micro_batches: Sequence[Sequence[int]]) -> int:
    """64 bits over the rows that a worker computes in each round of a step.

    The sum over all workers, modulo 2^64, says who computed what. A ledger has it, and an audit derives it anew.
    """
    total = 0
    for number, rows in enumerate(micro_batches):
        if rows:
            text = f"worker {rank} round {number} rows {' '.join(map(str, rows))}"
            total += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return total % 2**64


BY_LENGTH_LAYOUTS: dict[int, Mapping[Mode, type[ByLength]]] = {
    BY_LENGTH_LAYOUT: {"balanced": BalancedByLength, "bitwise": BitwiseByLength}
}
"""version of the arithmetic -> mode -> the class of its plans. Older versions stay, for audits."""
