"""Two histories of one job, held against each other: what they did, step by step, and what came of it.

Pure but for reading run folders. No torch, no Ray.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from planner.audit import committed_records
from planner.store.records import EvalRecord, Manifest, StepRecord
from planner.store.run import Run

# What `batches` promises: the same samples, and rounding that may differ. float32 rounding in a sum of some thousand
# terms is about 1e-7 a step; it grows with training, and bfloat16 begins at 2^-8. Seen: 6e-8 in fp32 (the demo's
# job, 20 steps, W = 1..4), 1.6e-4 in bf16 (59 steps, W = 1..3). The tolerances leave room for longer
# runs: an assumption.
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one history left behind."""

    steps: Mapping[int, StepRecord]
    evals: Mapping[int, EvalRecord]
    observed: Mapping[int, Mapping[str, tuple[int, ...]]]
    """step -> tensor -> checksums, before the step's update"""
    final: Manifest


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of a verdict."""

    what: str
    passed: bool
    words: str


def read_trace(run: Run, observed: bytes) -> Trace:
    """The committed lineage of a run, and the checksums that were observed on the way.

    Raises:
        StoreError: there is no commit, or the chain breaks.
    """
    final = run.manifest(run.commits()[-1])
    records = committed_records(run)
    lines = [json.loads(line) for line in observed.decode().splitlines()]
    return Trace(
        steps={r.step: r for r in records if isinstance(r, StepRecord)},
        evals={r.step: r for r in records if isinstance(r, EvalRecord)},
        # A step that was done again is written again; the last time is the one that counts.
        observed={line["step"]: {name: tuple(sums) for name, sums in line["tensors"].items()} for line in lines},
        final=final,
    )


def compare_bitwise(here: Trace, there: Trace) -> list[Check]:
    """Everything equal, to the last bit; where not, the first step and tensor that differ."""
    return [
        _compare_steps("samples", here, there, lambda s: (s.checksum, s.tokens, s.cursor)),
        _compare_steps("losses", here, there, lambda s: (s.loss, s.skipped)),
        _compare_steps("gradient norms", here, there, lambda s: s.grad_norm),
        _compare_steps("learning rates", here, there, lambda s: s.lr),
        _compare_evals(here, there),
        _compare_observed(here, there),
        _compare_tensors("weights", "model/", here, there),
        _compare_tensors("optimizer", "optimizer/", here, there),
    ]


def compare_batches(here: Trace, there: Trace, precision: str) -> list[Check]:
    """The same samples; losses, norms and held-out losses to a stated relative tolerance."""
    tolerance = LOSS_TOLERANCE[precision]
    return [
        _compare_steps("samples", here, there, lambda s: (s.checksum, s.tokens, s.cursor)),
        _compare_steps("learning rates", here, there, lambda s: s.lr),
        _close("losses", [(s.loss, there.steps[n].loss) for n, s in here.steps.items() if n in there.steps], tolerance),
        _close(
            "held-out losses",
            [(e.loss, there.evals[n].loss) for n, e in here.evals.items() if n in there.evals],
            tolerance,
        ),
    ]


def check_forward_passes(planned: Iterable[int], measured: Iterable[int]) -> Check:
    """Each worker's number of training forward passes, over all generations, against its plan."""
    pairs = list(zip(planned, measured, strict=True))
    wrong = [(i, p, m) for i, (p, m) in enumerate(pairs) if p != m]
    if wrong:
        i, plan, count = wrong[0]
        return Check(what="forward passes", passed=False, words=f"entry {i}: {count}, planned {plan}")
    return Check(what="forward passes", passed=True, words=f"as planned ({sum(p for p, _ in pairs)} in all)")


def _compare_steps(what: str, here: Trace, there: Trace, value: Callable[[StepRecord], object]) -> Check:
    if here.steps.keys() != there.steps.keys():
        return Check(what=what, passed=False, words=f"{len(here.steps)} steps against {len(there.steps)}")
    for number in sorted(here.steps):
        mine, theirs = value(here.steps[number]), value(there.steps[number])
        if mine != theirs:
            return Check(what=what, passed=False, words=f"differ first at step {number}: {mine} and {theirs}")
    return Check(what=what, passed=True, words=f"equal at {len(here.steps)} steps")


def _compare_evals(here: Trace, there: Trace) -> Check:
    for number in sorted(here.evals.keys() & there.evals.keys()):
        mine, theirs = here.evals[number].loss, there.evals[number].loss
        if mine != theirs:
            words = f"differ first before step {number}: {mine} and {theirs}"
            return Check(what="held-out losses", passed=False, words=words)
    both = len(here.evals.keys() & there.evals.keys())
    return Check(what="held-out losses", passed=True, words=f"equal at {both} evaluations")


def _compare_observed(here: Trace, there: Trace) -> Check:
    """Gradients, weights and optimizer state, tensor by tensor, as each step began its update."""
    what = "tensors by step"
    for number in sorted(here.observed.keys() | there.observed.keys()):
        mine, theirs = here.observed.get(number, {}), there.observed.get(number, {})
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return Check(what=what, passed=False, words=f"differ first at step {number}, in {name}")
    tensors = max((len(sums) for sums in here.observed.values()), default=0)
    words = f"equal at {len(here.observed)} steps, {tensors} tensors each"
    return Check(what=what, passed=bool(here.observed), words=words if here.observed else "none were observed")


def _compare_tensors(what: str, prefix: str, here: Trace, there: Trace) -> Check:
    mine = {n: d for n, d in here.final.tensors.items() if n.startswith(prefix)}
    theirs = {n: d for n, d in there.final.tensors.items() if n.startswith(prefix)}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return Check(what=what, passed=False, words=f"differ at the end, first in {name}")
    return Check(what=what, passed=bool(mine) or prefix != "model/", words=f"{len(mine)} tensors, {_joint(mine)}")


def _joint(digests: Mapping[str, str]) -> str:
    """One digest for all, to read out loud."""
    return "SHA-256 " + hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]


def _close(what: str, pairs: list[tuple[float, float]], tolerance: float) -> Check:
    largest = max((abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs), default=0.0)
    words = f"largest relative difference {largest:.1e}, tolerance {tolerance:.0e}"
    return Check(what=what, passed=largest <= tolerance, words=words)
