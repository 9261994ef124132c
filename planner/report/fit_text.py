"""What `planner fit` found: a line per world size, and a line per term."""

from collections.abc import Sequence

from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.plan.rates import Rates
from planner.plan.step_time import Term
from planner.report.text_columns import aligned, hanging, wrapped
from planner.runner.fit_run import FittedRun
from planner.story.step_times import StepTimes

_SIZES = ("workers", "steps", "micro-batch", "s/step", "in collectives", "model", "residual")
_FEW_STEPS = 10
_GIGA = 1e9


def fit_lines(found: FittedRun, width: int | None) -> list[str]:
    """A heading, the table of sizes, the terms, and what to know of them."""
    rates, times = found.rates, found.times
    return [
        *wrapped(f"{rates.job}: global batch {rates.sizes.global_batch}", width),
        "",
        *aligned([_SIZES, *_size_rows(rates)]),
        "",
        *(line for name, text in _terms(rates) for line in hanging(f"{name:<11}", text, width)),
        "",
        *(line for text in _notes(rates, times) for line in wrapped(text, width)),
    ]


def _size_rows(rates: Rates) -> list[tuple[str, ...]]:
    residuals = rates.residuals
    return [
        (
            str(each.world_size),
            f"{each.steps:,}",
            _micro_batch(each.plan(rates.sizes)),
            f"{each.seconds:.3g}",
            f"{each.waited_s / each.seconds:.0%}" if each.waited_s else "-",
            f"{each.seconds * (1 + residuals[each.world_size]):.3g}",
            f"{residuals[each.world_size]:+.1%}",
        )
        for each in rates.measured
    ]


def _micro_batch(plan: Plan) -> str:
    """The largest one in samples, or the cap in tokens."""
    return f"{plan.max_tokens:,} tokens" if isinstance(plan, ByLength) else str(plan.max_micro_batch)


def _terms(rates: Rates) -> list[tuple[str, str]]:
    model = rates.model
    return [
        ("compute", _term_text(model.sample_s, "s per sample")),
        ("rounds", _term_text(model.round_s, "s per round")),
        ("fixed", _term_text(model.fixed_s, "s per step")),
        ("bytes", _bandwidth_text(model.in_node_s_per_byte)),
        ("commits", _term_text(model.commit_s, "s per step")),
    ]


def _term_text(term: Term, unit: str) -> str:
    because = f" ({term.because})" if term.because else ""
    return f"{term.value:.3g} {unit}, {term.source}{because}" if term.value else term.because


def _bandwidth_text(term: Term) -> str:
    if not term.value:
        return term.because
    return f"{1 / (term.value * _GIGA):.3g} GB/s between workers, {term.source} ({term.because})"


def _notes(rates: Rates, times: StepTimes) -> Sequence[str]:
    """What a reader should know before using the rates."""
    notes = []
    if len(rates.measured) == 1:
        notes.append(
            "Only one world size was measured, so a step's time is taken to be proportional to its cost. "
            "A second one, best half or twice as many workers, tells the fixed part."
        )
    if rates.measured[-1].world_size > 1 and not any(each.waited_s for each in rates.measured):
        notes.append("The time in collectives is not known (as over NCCL), so that of bytes is in the other terms.")
    if few := [each for each in rates.measured if each.steps < _FEW_STEPS]:
        texts = ", ".join(f"{each.steps} at {each.world_size}" for each in few)
        notes.append(f"Few steps were measured ({texts}), so their medians may be far off.")
    if times.sample_flops:
        rate = times.sample_flops / rates.model.sample_s.value if rates.model.sample_s.value else 0.0
        peak = f", {rate / times.peak_flops_per_s:.0%} of the peak" if times.peak_flops_per_s else ""
        if rate:
            notes.append(f"compute is {rate / 1e12:.3g} TFLOP/s per worker{peak} (model FLOPs).")
    if times.left_out:
        notes.append(f"{times.left_out:,} steps with another batch, model, data or recipe are left out.")
    if times.other_caps:
        notes.append(f"{times.other_caps:,} steps are left out: their world size had other micro-batches later.")
    return notes
