"""`planner plan --lengths`: what a job's first steps cost at each worker count, by the lengths of their samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from planner.data.base import Progress, SampleDataset, no_progress
from planner.data.longest import longest_sample, require_fitting, require_lengths
from planner.data.samples import Feedback, Pair, Sample, Text
from planner.data.source_stamps import placed
from planner.errors import PlanError
from planner.job import Job, batch_sizes
from planner.job.step_schedule import total_steps
from planner.order.order import Order
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.by_length import ByLength
from planner.provenance.identity import open_data

_MOST_STEPS, _FEWEST_STEPS, _MOST_ASSIGNMENTS, _MOST_SAMPLES = 200, 20, 2000, 2**18


@dataclass(frozen=True, kw_only=True)
class Costs:
    """A cost of several steps, in tokens: the sum over rounds of the round's largest micro-batch."""

    mean: float
    p95: float
    worst: float
    rounds: float
    """per step, on average"""

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int]]) -> "Costs":
        """Of `(cost, rounds)` of each step."""
        costs = sorted(cost for cost, _ in steps)
        return cls(
            mean=sum(costs) / len(costs),
            p95=costs[math.ceil(0.95 * len(costs)) - 1],
            worst=costs[-1],
            rounds=sum(rounds for _, rounds in steps) / len(steps),
        )


@dataclass(frozen=True, kw_only=True)
class LengthCosts:
    """What steps cost at one worker count."""

    world_size: int
    even: float
    """tokens of a step over the number of workers, on average. No split of whole tokens costs less"""
    padded: Costs
    """of the plan without lengths: each micro-batch is padded to its longest sequence, and padding costs as much as
    tokens do"""
    by_length: Costs | None
    """of the plan by length. None without `batch.max_tokens`"""


@dataclass(frozen=True, kw_only=True)
class StepLengths:
    """The lengths of the samples in a job's first steps."""

    num_steps: int
    num_samples: int
    mean: float
    """tokens of a sample. Both completions of a pair count"""
    longest: int
    """tokens of the longest of these samples"""
    largest_padded: int
    """tokens of the largest padded micro-batch, at any of the worker counts. With this as `batch.max_tokens`, no
    micro-batch needs more memory for activations than that one"""
    costs: tuple[LengthCosts, ...]
    """one per worker count"""


@dataclass(frozen=True, kw_only=True)
class OpenData:
    """The data of a job, whose samples have known lengths."""

    dataset: SampleDataset
    order: Order

    def longest(self, job: Job) -> int | None:
        """Tokens of the longest sample. None if rows would be tokenized only for this."""
        return longest_sample(job, self.dataset)


def length_costs(job: Job, counts: Sequence[int], progress: Progress = no_progress) -> StepLengths:
    """Open the data of a job, and find what its first steps cost at each worker count.

    Raises:
        DataError: the data cannot be read, does not tell its lengths, or has a sample above `batch.max_tokens`.
        PlanError: the job's kind of data does not tell its lengths, or no plan serves a count.
    """
    data = open_lengths(job, progress)
    return costs_of(job, data, [make_plan(batch_sizes(job), count) for count in counts])


def open_lengths(job: Job, progress: Progress = no_progress) -> OpenData:
    """Open the data of a job.

    Raises:
        DataError: the data cannot be read, does not tell its lengths, or has a sample above `batch.max_tokens`.
        PlanError: the job's kind of data does not tell its lengths.
    """
    if job.is_own:
        raise PlanError("--lengths: the samples of this job come from your own code, so their lengths are not known")
    # By its absolute path, as a run opens it: then both take the same entries of the machine's cache.
    dataset, order = open_data(job.model_copy(update={"data": placed(job.data)}), progress)
    require_lengths(dataset)
    require_fitting(job, dataset)
    return OpenData(dataset=dataset, order=order)


def costs_of(job: Job, data: OpenData, plans: Sequence[Plan]) -> StepLengths:
    """What a job's first steps cost by each plan."""
    dataset, order = data.dataset, data.order
    size = job.batch.global_batch
    most = min(_MOST_STEPS, max(_FEWEST_STEPS, _MOST_ASSIGNMENTS // len(plans)), max(1, _MOST_SAMPLES // size))
    num_steps = min(most, total_steps(job, order.num_samples))
    steps = [_Step.of(dataset, order, number * size, size) for number in range(num_steps)]
    found = [_at(plan, steps) for plan in plans]
    tokens = [count for step in steps for count in step.tokens]
    return StepLengths(
        num_steps=num_steps,
        num_samples=len(tokens),
        mean=sum(tokens) / len(tokens),
        longest=max(tokens),
        largest_padded=max(largest for _, largest in found),
        costs=tuple(costs for costs, _ in found),
    )


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The lengths of one step's samples, by their offsets in the global batch."""

    tokens: list[int]
    squares: list[int]
    longest: list[int]
    """of each sample's sequences"""
    sequences: int
    """of each sample: 2 of a pair"""

    @classmethod
    def of(cls, dataset: SampleDataset, order: Order, cursor: int, size: int) -> "_Step":
        rows = order.rows(cursor, cursor + size)
        lengths = dataset.lengths(rows)
        sequences = [_sequences(sample) for sample in dataset.samples(rows.tolist())]
        return cls(
            tokens=lengths.tokens.tolist(),
            squares=lengths.squares.tolist(),
            longest=[max(each) for each in sequences],
            sequences=len(sequences[0]),
        )


def _sequences(sample: Sample) -> tuple[int, ...]:
    """The lengths of the sequences that a sample becomes."""
    if isinstance(sample, Pair):
        return len(sample.chosen.inputs), len(sample.rejected.inputs)
    text = sample.text if isinstance(sample, Feedback) else cast("Text", sample)
    return (len(text.inputs),)


def _at(plan: Plan, steps: Sequence[_Step]) -> tuple[LengthCosts, int]:
    """The costs by one plan, and the tokens of the largest padded micro-batch."""
    count = plan.world_size
    padding = BatchSizes(global_batch=plan.global_batch, max_micro=plan.max_micro, equality=plan.mode)
    equal = make_plan(padding, count)
    padded = [_padded(equal, step) for step in steps]
    by_length = Costs.of([_assigned(plan, step) for step in steps]) if isinstance(plan, ByLength) else None
    costs = LengthCosts(
        world_size=count,
        even=sum(sum(step.tokens) for step in steps) / len(steps) / count,
        padded=Costs.of([(cost, equal.accumulation_steps) for cost, _ in padded]),
        by_length=by_length,
    )
    return costs, max(largest for _, largest in padded)


def _padded(plan: Plan, step: _Step) -> tuple[int, int]:
    """The step's cost with padding, and its largest micro-batch."""
    rounds = [
        [_padded_tokens(step, plan.micro_batch(rank, number)) for rank in range(plan.workers_used)]
        for number in range(plan.accumulation_steps)
    ]
    return sum(map(max, rounds)), max(map(max, rounds))


def _padded_tokens(step: _Step, slot: range) -> int:
    return step.sequences * len(slot) * max(step.longest[slot.start : slot.stop]) if slot else 0


def _assigned(plan: ByLength, step: _Step) -> tuple[int, int]:
    """The step's cost by length, and its rounds."""
    found = plan.assignment(step.tokens, step.squares)
    return found.step_cost(step.tokens), found.accumulation_steps
