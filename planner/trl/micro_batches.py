"""Which rows a process computes in which round, and what each micro-batch weighs. Nothing here needs transformers.

Step t has the positions [t*G, (t+1)*G) of the seeded order. The plan splits them over W processes and A rounds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from planner.order.order import Order
from planner.plan import Plan


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The length of a run, which does not depend on the number of processes."""

    total_steps: int
    """optimizer steps of the run"""
    steps_per_epoch: int
    """optimizer steps that the trainer counts as one epoch. Batches continue across its end, so no tail is dropped"""

    @property
    def num_epochs(self) -> int:
        """Epochs of the trainer's loop, the last of which may end early."""
        return -(-self.total_steps // self.steps_per_epoch)


def run_length(*, num_rows: int, global_batch: int, max_steps: int, num_epochs: float) -> RunLength:
    """The length of a run in optimizer steps, rounded up: the last step is a whole one.

    Args:
        num_rows: rows to train on.
        global_batch: G.
        max_steps: as in TrainingArguments. Where it is positive, it decides.
        num_epochs: passes over the rows, if `max_steps` does not decide.
    """
    # The exact decimal: 0.1 of 1000 rows is 100, but slightly more if 0.1 is taken as a binary float.
    epochs = Fraction(repr(num_epochs)) if isinstance(num_epochs, float) else Fraction(num_epochs)
    total = max_steps if max_steps > 0 else math.ceil(epochs * num_rows / global_batch)
    return RunLength(total_steps=total, steps_per_epoch=-(-num_rows // global_batch))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The micro-batches of one process."""

    plan: Plan
    order: Order
    rank: int

    @property
    def num_rounds(self) -> int:
        """A: the micro-batches of a step, as many on every process."""
        return self.plan.accumulation_steps

    def samples(self, round_number: int) -> int:
        """Samples of this process in a round. 0 for a ghost."""
        return len(self.plan.micro_batch(self.rank, round_number))

    def is_ghost(self, round_number: int) -> bool:
        """Whether this process has no sample in a round. It computes one with zero weight, as collectives need it."""
        return self.samples(round_number) == 0

    def all_samples(self, round_number: int) -> list[int]:
        """Samples of each process in a round, by rank."""
        return [len(self.plan.micro_batch(rank, round_number)) for rank in range(self.plan.world_size)]

    def rows(self, step: int, round_number: int) -> list[int]:
        """The data rows of a micro-batch. A ghost's is the first row of the step, because a collator needs one."""
        start, micro = step * self.plan.global_batch, self.plan.micro_batch(self.rank, round_number)
        if not micro:
            micro = range(1)
        return [int(row) for row in self.order.rows(start + micro.start, start + micro.stop)]

    def position(self, step: int, round_number: int) -> int:
        """The position of a micro-batch's first sample in the endless order. A ghost's is that after the step."""
        return step * self.plan.global_batch + self.plan.micro_batch(self.rank, round_number).start

    def mean_weight(self, round_number: int) -> float:
        """What to multiply the mean over a micro-batch's samples by, so that DDP's average is the global mean.

        A process has n of G samples, and DDP averages gradients over W processes:

            1/W * sum over all micro-batches of (n * W / G) * mean  =  1/G * sum over all samples
        """
        return self.samples(round_number) * self.plan.world_size / self.plan.global_batch


@dataclass(frozen=True, kw_only=True)
class MicroBatchSampler:
    """A batch sampler of one epoch of the trainer: the rows of each micro-batch of this process, step by step."""

    shares: Shares
    steps: int
    """optimizer steps of an epoch"""
    first_step: Callable[[], int]
    """asked when an iteration begins: the first optimizer step of the epoch"""

    def __len__(self) -> int:
        return self.steps * self.shares.num_rounds

    def __iter__(self) -> Iterator[list[int]]:
        first = self.first_step()
        for step in range(first, first + self.steps):
            for round_number in range(self.shares.num_rounds):
                yield self.shares.rows(step, round_number)
