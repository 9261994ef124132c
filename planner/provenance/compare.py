"""Compares two histories of one job, step by step and at their end. `planner verify` uses it.

Apart from reading run folders, it is pure. No torch, no Ray.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from planner.base.json_text import NoJson, json_object
from planner.base.text import counted
from planner.plan import BatchSizes, make_plan
from planner.plan.by_length import ByLength
from planner.provenance.identity import recorded_sizes
from planner.provenance.lineage import whole_lineage
from planner.store.records import EvalRecord, Manifest, StepRecord, joint_digest
from planner.store.run_folder import RunFolder

# `balanced` promises the same samples, and rounding may differ. float32 rounding in a sum of some thousand terms is
# about 1e-7 a step. It grows with training, and bfloat16 starts at 2^-8. Measured: 6e-8 in fp32 (the demo's job,
# 20 steps, W = 1..4), 1.6e-4 in bf16 (59 steps, W = 1..3). That the tolerances suffice for longer runs is an
# assumption.
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
WEIGHTS_TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one history left in its run's folder."""

    steps: Mapping[int, StepRecord]
    evals: Mapping[int, EvalRecord]
    observed: Mapping[int, Mapping[str, tuple[int, ...]]]
    """step -> tensor name -> checksums, before the step's update"""
    work: tuple["StepWork", ...]
    """one entry per computed step, including steps that a loss discarded"""
    final: Manifest
    """of the last commit"""
    sizes: Mapping[int, BatchSizes] = field(default_factory=dict)
    """world size -> the batch sizes of its last committed generation, with the caps that it found itself"""
    drawn: frozenset[str] = frozenset()
    """generators that a worker used while it computed a step: `torch`, `random`, `numpy`"""
    dropout_off: Mapping[str, float] = field(default_factory=dict)
    """module or function -> the probability of its dropout, which was turned off"""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The counted work of one step."""

    step: int
    attempts: int
    forward_passes: tuple[int, ...]
    """by rank"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison of the two histories."""

    what: str
    passed: bool
    detail: str
    """the numbers, or the first difference, for people"""


def read_trace(run: RunFolder, observed: bytes) -> Trace:
    """Read the committed lineage of a run. `observed` holds the checksums of each step, as JSON lines.

    Raises:
        StoreError: there is no run or no commit, or the chain breaks.
    """
    # Raises an error if there is no run.
    run.identity()
    lineage = whole_lineage(run)
    lines = _lines(observed)
    return Trace(
        steps={step.step: step for step in lineage.steps},
        evals={each.step: each for each in lineage.evals},
        # A step that is computed again is also written again. The last line counts.
        observed={line["step"]: {name: tuple(sums) for name, sums in line["tensors"].items()} for line in lines},
        work=tuple(
            StepWork(step=line["step"], attempts=line["attempts"], forward_passes=tuple(line["forward_passes"]))
            for line in lines
        ),
        final=lineage.newest,
        sizes={segment.header.world_size: recorded_sizes(segment.header) for segment in lineage.segments},
        drawn=frozenset(name for line in lines for name, workers in line.get("drawn", {}).items() if workers),
        dropout_off={name: p for line in lines for name, p in line.get("dropout_off", {}).items()},
    )


def _lines(observed: bytes) -> list[dict[str, Any]]:
    """The parsed lines. A line that a killed worker left torn is ignored."""
    lines = []
    for line in observed.decode().splitlines():
        with contextlib.suppress(NoJson):
            lines.append(json_object(line))
    return lines


def compare_bitwise(here: Trace, there: Trace) -> list[Check]:
    """Check that everything is equal to the last bit. A failed check names the first step or tensor that differs."""
    return [
        _compare_steps("samples", here, there, lambda s: (s.checksum, s.tokens, s.samples, s.cursor)),
        _compare_steps("losses", here, there, lambda s: (s.loss, s.metrics, s.skipped)),
        _compare_steps("gradient norms", here, there, lambda s: s.grad_norm),
        _compare_steps("learning rates", here, there, lambda s: s.lr),
        _compare_evals(here, there),
        _compare_observed(here, there),
        _compare_tensors("weights", "model/", here, there),
        _compare_tensors("optimizer", "optimizer/", here, there),
        _compare_tensors("sums' scales", "fixed_point/", here, there),
    ]


def compare_batches(here: Trace, there: Trace, precision: str) -> list[Check]:
    """Check that samples and learning rates are equal, and that losses agree within `LOSS_TOLERANCE[precision]`."""
    tolerance = LOSS_TOLERANCE[precision]
    return [
        _compare_steps("samples", here, there, lambda s: (s.checksum, s.tokens, s.samples, s.cursor)),
        _compare_steps("learning rates", here, there, lambda s: s.lr),
        _close("losses", _losses(here.steps), _losses(there.steps), tolerance),
        _close("held-out losses", _losses(here.evals), _losses(there.evals), tolerance),
    ]


def compared(equality: str, precision: str) -> list[str]:
    """What `planner verify` compares, one text per check."""
    both = ["world sizes", "forward passes", "samples", "learning rates"]
    if equality == "bitwise":
        exact = ["losses", "gradient norms", "held-out losses", "every tensor at every step", "weights", "optimizer"]
        return [*both, *(f"{what} to the last bit" for what in exact)]
    loss, weights = f"within {LOSS_TOLERANCE[precision]:g}", f"within {WEIGHTS_TOLERANCE[precision]:g}"
    return [*both, f"losses {loss}", f"held-out losses {loss}", f"weights {weights}"]


def check_sizes(sizes: Sequence[int], trace: Trace) -> Check:
    """Check that the run went through the requested sizes. A world size that never changed would prove nothing."""
    seen = [size for size, _ in groupby(len(work.forward_passes) for work in trace.work)]
    asked = [size for size, _ in groupby(sizes)]
    detail = ", ".join(map(str, seen)) if seen == asked else f"{seen} instead of {asked}"
    return Check(what="world sizes", passed=seen == asked, detail=detail)


def close_weights(distances: Mapping[str, tuple[float, float]], precision: str) -> Check:
    """Check the relative difference of the final weights, over the whole model.

    The tensors are not checked one by one: some gradients are zero except for rounding (an attention's key bias), and
    Adam turns that rounding into full steps.

    Args:
        distances: tensor name -> (norm of the difference, norm).
        precision: `fp32` or `bf16`, which decides the tolerance.
    """
    length = math.hypot(*(norm for _, norm in distances.values()))
    # A model of zeros is equal to itself, and 0 / 0 is not a number.
    relative = math.hypot(*(difference for difference, _ in distances.values())) / max(length, 1e-30)
    tolerance = WEIGHTS_TOLERANCE[precision]
    largest = max(distances, key=lambda name: distances[name][0])
    detail = (
        f"relative difference {relative:.1e}, tolerance {tolerance:.0e}, largest in {largest.removeprefix('model/')}"
    )
    return Check(what="weights", passed=relative <= tolerance, detail=detail)


def check_forward_passes(sizes: BatchSizes, *traces: Trace, is_auto: bool = False) -> Check:
    """Check each worker's number of training forward passes at each step against the plan of its world size.

    Args:
        sizes: of the job.
        traces: the histories.
        is_auto: whether worker groups find their own caps, so that those on record count.
    """
    what, total = "forward passes", 0
    for sizes_of, work in ((trace.sizes, work) for trace in traces for work in trace.work):
        world_size = len(work.forward_passes)
        plan = make_plan(sizes_of.get(world_size, sizes) if is_auto else sizes, world_size)
        planned = plan.accumulation_steps * work.attempts
        if isinstance(plan, ByLength):
            # The lengths of a step's samples decide its rounds, which are as many on every worker.
            planned = max(planned, work.forward_passes[0] // work.attempts * work.attempts)
        for rank, count in enumerate(work.forward_passes):
            if count != planned:
                detail = f"step {work.step}, worker {rank}: {count}, planned {planned}"
                return Check(what=what, passed=False, detail=detail)
        total += sum(work.forward_passes)
    for trace in traces:
        if missing := trace.steps.keys() - {work.step for work in trace.work}:
            return Check(what=what, passed=False, detail=f"none were counted at step {min(missing)}")
    detail = f"{total} in both histories, as planned (ghosts and repetitions included)"
    return Check(what=what, passed=True, detail=detail)


def _compare_steps(what: str, here: Trace, there: Trace, value: Callable[[StepRecord], object]) -> Check:
    if here.steps.keys() != there.steps.keys():
        return Check(what=what, passed=False, detail=f"{len(here.steps)} steps against {len(there.steps)}")
    for number in sorted(here.steps):
        mine, theirs = value(here.steps[number]), value(there.steps[number])
        if mine != theirs:
            return Check(what=what, passed=False, detail=f"differ first at step {number}: {mine} and {theirs}")
    return Check(what=what, passed=True, detail=f"equal at {counted(len(here.steps), 'step')}")


def _compare_evals(here: Trace, there: Trace) -> Check:
    what = "held-out losses"
    for number in sorted(here.evals.keys() | there.evals.keys()):
        mine, theirs = (
            (e.loss, e.metrics, e.samples, e.tokens) if e else None
            for e in (here.evals.get(number), there.evals.get(number))
        )
        if mine != theirs:
            return Check(what=what, passed=False, detail=f"differ first before step {number}: {mine} and {theirs}")
    return Check(what=what, passed=True, detail=f"equal at {counted(len(here.evals), 'evaluation')}")


def _compare_observed(here: Trace, there: Trace) -> Check:
    """Check gradients, weights and optimizer state, tensor by tensor, before each step's update."""
    what = "tensors by step"
    for number in sorted(here.observed.keys() | there.observed.keys()):
        mine, theirs = here.observed.get(number, {}), there.observed.get(number, {})
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return Check(what=what, passed=False, detail=f"differ first at step {number}, in {name}")
    if missing := here.steps.keys() - here.observed.keys():
        return Check(what=what, passed=False, detail=f"none were observed at step {min(missing)}")
    tensors = max((len(sums) for sums in here.observed.values()), default=0)
    steps = counted(len(here.observed), "step")
    detail = f"equal at {steps}: gradients, weights and optimizer, up to {tensors} tensors"
    return Check(what=what, passed=True, detail=detail)


def _compare_tensors(what: str, prefix: str, here: Trace, there: Trace) -> Check:
    mine = {n: d for n, d in here.final.tensors.items() if n.startswith(prefix)}
    theirs = {n: d for n, d in there.final.tensors.items() if n.startswith(prefix)}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return Check(what=what, passed=False, detail=f"differ at the end, first in {name}")
    # Only plain SGD has an optimizer without a tensor.
    may_be_none = prefix == "optimizer/" and here.final.identity.optimizer == "sgd"
    return Check(
        what=what,
        passed=bool(mine) or may_be_none,
        detail=f"{len(mine)} tensors, SHA-256 {joint_digest(mine)}",
    )


def _losses(records: Mapping[int, StepRecord] | Mapping[int, EvalRecord]) -> dict[int, float]:
    return {number: record.loss for number, record in records.items()}


def _close(what: str, here: Mapping[int, float], there: Mapping[int, float], tolerance: float) -> Check:
    if here.keys() != there.keys():
        return Check(what=what, passed=False, detail=f"{len(here)} on one side, {len(there)} on the other")
    largest = max((abs(a - there[n]) / max(abs(a), abs(there[n]), 1e-30) for n, a in here.items()), default=0.0)
    detail = f"largest relative difference {largest:.1e}, tolerance {tolerance:.0e}"
    return Check(what=what, passed=largest <= tolerance, detail=detail)
