"""The plan: who computes which samples of a global batch, in which round.

Symbols: G samples per optimizer step, W workers, A rounds (forward/backward passes per step, equal on every
worker because FSDP's collectives need it), m the cap on a micro-batch.

FSDP synchronises every round. So a step's cost is the sum over rounds of the round's largest micro-batch.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

Mode = Literal["balanced", "bitwise"]
Fit = Literal["unknown", "full", "too_large"]
"""whether a plan's micro-batches fit into a kind of GPU: `full` means that they do, and no larger ones would"""

# For a forward pass FSDP gathers 2 bytes per parameter in bf16, and n tokens compute 2 n FLOP per parameter. So a GPU
# of 400 TFLOP/s (40 % of an H100's dense bf16 peak) behind a link of 50 GB/s (400 Gbit/s) computes as long as it
# gathers at n = 400e12 / 50e9 = 8,000. Assumed, not measured. Within a machine (NVLink, 450 GB/s) it is about 900.
_ENOUGH_TOKENS = 8_000

_RAISE: Mapping[Fit, str] = {
    "unknown": "raise max_micro (bf16 and activation checkpointing save memory)",
    "full": "no larger one fits, so save memory (bf16, activation checkpointing)",
}
_OR: Mapping[Fit, str] = {"unknown": ", or ", "full": " or "}

LAYOUT_VERSION = 1
"""version of new plans. Other arithmetic gets another version. Audits of older runs use the older versions."""


def canonical_mode(value: object) -> object:
    """`balanced` for `batches`, its name in early job files and runs. Any other value is returned as it is."""
    return "balanced" if value == "batches" else value


def ceil_div(numerator: int, denominator: int) -> int:
    """`ceil(numerator / denominator)` in integers."""
    return -(-numerator // denominator)


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """How a job's global batch is split at one world size. Made by `planner.plan.make_plan`.

    Each split is a class of its own (`planner.plan.layout`), with the arithmetic that is abstract here. Memory is O(1):
    shares and micro-batches are computed on demand.
    """

    mode: ClassVar[Mode]
    """what is equal at every world size"""

    global_batch: int
    """G: samples per optimizer step"""
    world_size: int
    """W: workers in the group"""
    max_micro: int
    """m: the cap on a micro-batch that the job set, in samples"""
    layout_version: int = LAYOUT_VERSION
    """version of the arithmetic, part of the digest"""

    @property
    @abstractmethod
    def accumulation_steps(self) -> int:
        """A: forward/backward rounds per optimizer step, the same on every worker."""

    @property
    @abstractmethod
    def workers_used(self) -> int:
        """Workers that have samples. The others run zero-weight ghosts."""

    @property
    @abstractmethod
    def shares(self) -> tuple[tuple[int, int], ...]:
        """Workers grouped by share, larger first: `(number of workers, samples each)`, by rising rank."""

    @property
    @abstractmethod
    def step_cost(self) -> int:
        """Sum over rounds of the round's largest micro-batch, in samples."""

    @property
    @abstractmethod
    def max_micro_batch(self) -> int:
        """The largest micro-batch of the plan in samples, at most `max_micro`."""

    @property
    @abstractmethod
    def num_micro_batches(self) -> int:
        """An upper bound on the micro-batches that are not ghosts, so on the gradients in a step's sum."""

    @property
    def most_micro_batches(self) -> int:
        """`num_micro_batches`, or what it may become by lengths. The same at every world size in `bitwise`."""
        return self.num_micro_batches

    @property
    @abstractmethod
    def fewest_workers_as_fast(self) -> int:
        """The smallest world size with the same step cost."""

    @abstractmethod
    def _samples(self, rank: int, accumulation_step: int) -> range:
        """What `micro_batch` returns. Both numbers are in range."""

    @property
    def work(self) -> float:
        """What a step's time is fitted by (`planner.plan.speed`), in samples of mean length: the step cost.

        By length it need not be whole.
        """
        return self.step_cost

    def largest_round(self, step_cost: float) -> float:
        """The time of the largest round, as a part of a mean step's time.

        Args:
            step_cost: of all samples of a mean step, in the unit of `ByLength.costs`. 0 if not known.
        """
        del step_cost
        return self.max_micro_batch / self.step_cost

    @property
    def workers_idle(self) -> int:
        """Workers without a sample."""
        return self.world_size - self.workers_used

    @property
    def efficiency(self) -> float:
        """`(G / W) / step_cost`: the fraction of the workers' time that computes samples."""
        return self.global_batch / (self.world_size * self.step_cost)

    @property
    def balanced_cost(self) -> int:
        """`ceil(G / W)`, the step cost in `balanced` mode, in samples. No split of whole samples has a lower one.

        Where it equals `step_cost`, `bitwise` costs nothing.
        """
        return ceil_div(self.global_batch, self.world_size)

    def at(self, world_size: int) -> Self:
        """This job's plan at another world size."""
        return replace(self, world_size=world_size)

    def splits_like(self, other: "Plan") -> bool:
        """Whether workers compute the same micro-batches by both plans, of one job at one world size."""
        return (self.accumulation_steps, self.max_micro_batch) == (other.accumulation_steps, other.max_micro_batch)

    def micro_batch(self, rank: int, accumulation_step: int) -> range:
        """The half-open range of the global batch that `rank` computes in one round. Empty for a ghost.

        Raises:
            IndexError: `rank` or `accumulation_step` is out of range.
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is not in [0, {self.world_size})")
        if not 0 <= accumulation_step < self.accumulation_steps:
            raise IndexError(f"accumulation step {accumulation_step} is not in [0, {self.accumulation_steps})")
        return self._samples(rank, accumulation_step)

    def micro_batches(self, rank: int) -> list[range]:
        """The micro-batches of `rank` in order: `accumulation_steps` half-open ranges of the global batch."""
        return [self.micro_batch(rank, step) for step in range(self.accumulation_steps)]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify this plan: equal on every worker, in the ledger and in the dry run."""
        numbers = (self.global_batch, self.world_size, self.max_micro, self.accumulation_steps)
        text = f"layout {self.layout_version} {self.mode} {numbers}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def warnings(self) -> tuple[str, ...]:
        """`notes` where the length of samples is not known."""
        return self.notes()

    def notes(self, sample_tokens: int | None = None, fit: Fit = "unknown", fewest: int = 1) -> tuple[str, ...]:
        """What a user should know before paying for this world size, one sentence each. May be empty.

        Args:
            sample_tokens: tokens of each sample. None if that is not known.
            fit: of the plan's micro-batches. Those that are too large cannot be raised, and do not run.
            fewest: the smallest world size that fits into the GPU. 1 if that is not known.
        """
        bound, as_fast = self.communication_bound(sample_tokens, fit, fewest), self._fewer_are_as_fast(fewest)
        return tuple(filter(None, (self._idle(), bound, as_fast)))

    def _idle(self) -> str:
        if not self.workers_idle:
            return ""
        fed = f"a global batch of {self.global_batch} feeds at most {self.at(self.global_batch).workers_used}"
        return f"{self.workers_idle} of {self.world_size} workers idle: {fed}"

    def communication_bound(self, sample_tokens: int | None = None, fit: Fit = "unknown", fewest: int = 1) -> str:
        """The one of `notes` about micro-batches of a single sample, or empty. A long sample is enough work."""
        is_enough = self.max_micro_batch >= 2 or (sample_tokens or 0) >= _ENOUGH_TOKENS
        if self.world_size == 1 or is_enough or fit == "too_large":
            return ""
        size = f"{self.max_micro_batch}" + (f" ({sample_tokens:,} tokens)" if sample_tokens else "")
        return f"micro-batch {size} is communication-bound under FSDP: {self._less_communication(fit, fewest)}"

    def _less_communication(self, fit: Fit, fewest: int) -> str:
        """What to do about small micro-batches that fit."""
        fewer = "" if fewest >= self.world_size else "use fewer workers"
        if fewer and fewest > 1:
            fewer += f" ({fewest} or more fit)"
        # A higher cap helps only where the cap, not the share, makes the micro-batch small.
        if self.step_cost == 1:
            return fewer or "fewer workers do not fit"
        return f"{_RAISE[fit]}{_OR[fit]}{fewer}" if fewer else _RAISE[fit]

    def _fewer_are_as_fast(self, fewest: int) -> str:
        as_fast = max(self.fewest_workers_as_fast, fewest)
        if as_fast >= self.world_size:
            return ""
        return f"{as_fast} workers are just as fast" if as_fast > 1 else "1 worker is just as fast"
