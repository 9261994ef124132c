"""How long an optimizer step takes at any world size, as a sum of named terms.

Symbols of a plan (`planner.plan.plan`): C its work, in samples that the slowest worker computes one after another. A
its rounds. W its workers.

    compute   sample_s * C                                  forward and backward passes of one worker's samples
    rounds    round_s * A                                   what a round costs besides: launches, hooks, Python
    fixed     fixed_s                                       what a step costs at any size: optimizer, control message
    gather    A * gather_bytes * (W - 1) / W * s_per_byte   FSDP gathers the weights for each round
    reduce    R * reduce_bytes * (W - 1) / W * s_per_byte   FSDP sums the gradients, R = 1 or A times (`Traffic`)
    commit    commit_s                                      what commits stop training for, spread over all steps

A worker receives (W - 1) / W of all bytes in a ring, whatever the number of workers. `s_per_byte` is that of the
slowest link of the ring: within a node, or between nodes as soon as one node does not hold all workers.

Every number says where it comes from (`Term`). No term says what more workers cost beyond bytes (the latency of longer
rings, stragglers), so the model is optimistic far beyond the sizes that it was fitted on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.plan.by_length import ByLength
from planner.plan.least_squares import Equation, solved
from planner.plan.plan import Plan, ceil_div

Source = Literal["measured", "fitted", "data sheet", "assumed"]
"""where a number comes from. `measured`: it was observed as it is. `fitted`: it explains what was observed"""

# The prior of the fit: a tenth of a measurement which says that a step of no samples takes no time, and one which says
# the same of a round. With one measured count they make time proportional to cost. Two counts far apart overrule them.
# Two that are close together hold more noise than slope, and hardly change them.
_PRIOR_WEIGHT = 0.1
# Time in collectives is bytes, and waiting for slower workers. A step that is nearly all of it says nothing of bytes.
_MOST_WAITED = 0.95


@dataclass(frozen=True, kw_only=True)
class Term:
    """One number of a `StepModel`.

    Raises:
        ValueError: it is negative or not finite.
    """

    value: float
    source: Source
    because: str = ""
    """of what it was fitted, which data sheet, or why it is assumed"""

    def __post_init__(self) -> None:
        if not (self.value >= 0 and math.isfinite(self.value)):
            raise ValueError(f"a term of a step's time is {self.value}: it must be finite and 0 or more")


NOTHING = Term(value=0.0, source="assumed", because="0 explains what was measured, or other terms contain it")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What FSDP moves in a step, over all workers together, in bytes.

    The default has the proportions of a model whose weights are all trained in float32, in another unit: its weights.
    """

    gather_bytes: float = 2.0
    """of one round: the weights, for the forward pass and once more for the backward pass"""
    reduce_bytes: float = 1.0
    """of one sum of all gradients"""
    reduces_every_round: bool = False
    """whether gradients are summed after every round. Else once per step (`planner.job.gradient`)"""

    def gathered(self, plan: Plan, rounds: int) -> float:
        """Bytes that a worker receives in the gathers of a step of so many rounds."""
        return rounds * self.gather_bytes * _received(plan)

    def reduced(self, plan: Plan, rounds: int) -> float:
        """Bytes that a worker receives in such a step's sums of gradients."""
        return (rounds if self.reduces_every_round else 1) * self.reduce_bytes * _received(plan)


def _received(plan: Plan) -> float:
    return (plan.world_size - 1) / plan.world_size


def rounds_of(plan: Plan, sample_tokens: float) -> int:
    """The rounds of a plan's step. By length, the fewest for samples of so many tokens. 0 tokens: not known."""
    if not isinstance(plan, ByLength):
        return plan.accumulation_steps
    tokens = math.ceil(plan.balanced_cost * sample_tokens)
    return max(plan.accumulation_steps, ceil_div(tokens, plan.max_tokens))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The seconds of one step, by term."""

    compute_s: float
    rounds_s: float
    fixed_s: float
    gather_s: float
    reduce_s: float
    commit_s: float
    """its share of the commits"""

    @property
    def step_s(self) -> float:
        """The step itself, as ledgers and the controller count it: without its share of the commits."""
        return self.compute_s + self.rounds_s + self.fixed_s + self.gather_s + self.reduce_s


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """The terms of one job on one kind of device."""

    sample_s: Term
    """seconds of forward and backward of one sample on one worker"""
    round_s: Term = NOTHING
    fixed_s: Term = NOTHING
    in_node_s_per_byte: Term = NOTHING
    between_s_per_byte: Term = NOTHING
    """between nodes"""
    commit_s: Term = NOTHING
    """per step"""
    traffic: Traffic = Traffic()
    node_workers: int | None = None
    """workers on one node. None: not known, and all workers count as those of one node"""
    sample_tokens: float = 0.0
    """of a mean sample, for the rounds of plans by length (`rounds_of`)"""

    def parts(self, plan: Plan) -> StepTime:
        """The seconds of a plan's step, by term."""
        s_per_byte, rounds = self._s_per_byte(plan.world_size), rounds_of(plan, self.sample_tokens)
        return StepTime(
            compute_s=self.sample_s.value * plan.work,
            rounds_s=self.round_s.value * rounds,
            fixed_s=self.fixed_s.value,
            gather_s=self.traffic.gathered(plan, rounds) * s_per_byte,
            reduce_s=self.traffic.reduced(plan, rounds) * s_per_byte,
            commit_s=self.commit_s.value,
        )

    def seconds_per_step(self, plan: Plan) -> float:
        """Seconds of a plan's step, without its share of the commits."""
        return self.parts(plan).step_s

    def _s_per_byte(self, world_size: int) -> float:
        is_one_node = self.node_workers is None or world_size <= self.node_workers
        return (self.in_node_s_per_byte if is_one_node else self.between_s_per_byte).value


def compute_by_flops(flops_per_sample: float, flops_per_s: Term) -> Term:
    """The seconds of one sample's passes at a rate: `flops_per_sample / flops_per_s`. Its source is that of the rate.

    Raises:
        ValueError: one of them is not above 0.
    """
    if not (flops_per_sample > 0 and flops_per_s.value > 0):
        raise ValueError(f"{flops_per_sample=} and {flops_per_s.value=} must be above 0")
    return replace(flops_per_s, value=flops_per_sample / flops_per_s.value)


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """A typical step at one world size.

    Raises:
        ValueError: a time is impossible.
    """

    plan: Plan
    seconds: float
    """of a step, without commits"""
    waited_s: float | None = None
    """of it in collectives, the mean over workers. None if not known, as over NCCL"""

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ValueError(
                f"world size {self.plan.world_size} has {self.seconds} s per step: it must be finite and above 0"
            )
        if self.waited_s is not None and not 0 <= self.waited_s < math.inf:
            raise ValueError(f"world size {self.plan.world_size} waits {self.waited_s} s in collectives per step")


def fit(measured: Sequence[MeasuredSize], traffic: Traffic = Traffic(), sample_tokens: float = 0.0) -> StepModel:
    """The terms that explain measured steps best. With nothing measured, one second per sample: only ratios count.

    Least squares over terms of 0 or more, of these equations for each size, and of the prior:

        seconds   = sample_s * C + round_s * A + fixed_s + s_per_byte * bytes
        waited_s  = sample_s * (C - G / W)               + s_per_byte * bytes    where W > 1 and it is known

    In the second one, C - G / W is how long the mean worker waits for the one with the largest share. Without it, bytes
    cannot be told from other terms: their time is then in `fixed_s` (or, if rounds become fewer with W, in `round_s`).
    Rounds that follow the cost (A = C / m at each size) cannot be told from samples, and have no time of their own.

    Times that rise as the cost falls (workers that share a CPU) give `sample_s = 0`: more workers promise no gain.
    """
    if not measured:
        return StepModel(sample_s=Term(value=1.0, source="assumed", because="no step is measured"))
    values = solved(_equations(measured, traffic, sample_tokens))
    if values is None or not any(values[:3]):
        values = solved(_equations([replace(size, waited_s=None) for size in measured], traffic, sample_tokens))
    assert values is not None  # samples alone always explain something
    return replace(_model(measured, traffic, values), sample_tokens=sample_tokens)


def _model(measured: Sequence[MeasuredSize], traffic: Traffic, values: Sequence[float]) -> StepModel:
    counts = ", ".join(str(size) for size in sorted({each.plan.world_size for each in measured}))
    terms = [
        Term(value=value, source="fitted", because=f"of the steps at W = {counts}") if value else NOTHING
        for value in values
    ]
    sample_s, round_s, fixed_s, s_per_byte = terms
    return StepModel(
        sample_s=replace(sample_s, source="fitted"),
        round_s=round_s,
        fixed_s=fixed_s,
        in_node_s_per_byte=s_per_byte,
        between_s_per_byte=s_per_byte,
        traffic=traffic,
    )


def _equations(measured: Sequence[MeasuredSize], traffic: Traffic, sample_tokens: float) -> tuple[Equation, ...]:
    """The equations of all sizes and of the prior, with factors of (sample_s, round_s, fixed_s, s_per_byte).

    Sizes with the same factors are one: their mean.
    """
    knows_bytes = any(_waits(size) for size in measured)
    seconds: dict[tuple[float, float, float, float], list[float]] = {}
    for size in measured:
        plan, rounds = size.plan, rounds_of(size.plan, sample_tokens)
        num_bytes = traffic.gathered(plan, rounds) + traffic.reduced(plan, rounds) if knows_bytes else 0.0
        seconds.setdefault((plan.work, rounds, 1.0, num_bytes), []).append(size.seconds)
        if _waits(size):
            idle = max(plan.work - plan.global_batch / plan.world_size, 0.0)
            waited_s = min(size.waited_s or 0.0, _MOST_WAITED * size.seconds)
            seconds.setdefault((idle, 0.0, 0.0, num_bytes), []).append(waited_s)
    fewest = min(rounds_of(size.plan, sample_tokens) for size in measured)
    priors = (
        Equation((0.0, 0.0, 1.0, 0.0), 0.0, _PRIOR_WEIGHT),
        Equation((0.0, fewest, 0.0, 0.0), 0.0, _PRIOR_WEIGHT),
    )
    return (*(Equation(factors, math.fsum(s) / len(s), 1.0) for factors, s in sorted(seconds.items())), *priors)


def _waits(size: MeasuredSize) -> bool:
    return size.waited_s is not None and size.waited_s > 0 and size.plan.world_size > 1
