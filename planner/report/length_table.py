"""What steps cost by the lengths of their samples, as the table of `planner plan --lengths` and as JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from planner.base.text import counted
from planner.report.text_columns import aligned, wrapped

if TYPE_CHECKING:  # it opens data, which other plans do not need
    from planner.runner.length_costs import Costs, LengthCosts, StepLengths

# Packed rows and windows of a text are nearly full. Below this part of a step, advice is noise.
_WORTH_IT = 0.05
_PADDED = ("GPUs", "even", "padded", "p95", "worst", "rounds", "over even")
_BY_LENGTH = (*_PADDED[:2], "by length", *_PADDED[3:], "padded", "saved")


def length_lines(found: "StepLengths", width: int | None) -> list[str]:
    """What the samples of the first steps are, a table of costs in tokens, and what to do."""
    steps = f"the first {counted(found.num_steps, 'step')}" if found.num_steps > 1 else "the first step"
    lengths = f"mean {found.mean:,.0f} tokens, longest {found.longest:,}"
    lines = [
        f"Lengths of the {found.num_samples:,} samples in {steps}: {lengths}.",
        "Cost of a step in tokens: the sum over rounds of the round's largest micro-batch. even: tokens over GPUs.",
    ]
    has_plan = found.costs[0].by_length is not None
    table = aligned([_BY_LENGTH if has_plan else _PADDED, *map(_cells, found.costs)])
    if not has_plan:
        lines.append(f"Micro-batches are padded to their longest sequence. {_advice(found)}")
    return [*(line for text in lines for line in wrapped(text, width)), "", *table]


def _advice(found: "StepLengths") -> str:
    most = max(costs.padded.mean / costs.even - 1 for costs in found.costs)
    if most < _WORTH_IT:
        return f"Padding and waiting cost at most {most:.1%} here, so batch.max_tokens would save little."
    return (
        f"To pay for no padding, write batch.max_tokens: with {found.largest_padded:,} no micro-batch needs more "
        "memory than the largest padded one."
    )


def _cells(costs: "LengthCosts") -> tuple[str, ...]:
    shown = costs.by_length or costs.padded
    cells = (
        str(costs.world_size),
        f"{costs.even:,.0f}",
        *(f"{tokens:,.0f}" for tokens in (shown.mean, shown.p95, shown.worst)),
        f"{shown.rounds:.1f}".removesuffix(".0"),
        f"{shown.mean / costs.even:.2f}x",
    )
    if costs.by_length is None:
        return cells
    return (*cells, f"{costs.padded.mean:,.0f}", f"{costs.padded.mean / shown.mean:.2f}x")


def length_keys(found: "StepLengths", world_size: int) -> dict[str, object]:
    """The key of a plan's JSON object."""
    costs = next(each for each in found.costs if each.world_size == world_size)
    return {
        "lengths": {
            "steps": found.num_steps,
            "samples": found.num_samples,
            "mean_tokens": found.mean,
            "longest_tokens": found.longest,
            "largest_padded_micro_batch": found.largest_padded,
            "even_cost": costs.even,
            "padded": _object(costs.padded),
            "by_length": _object(costs.by_length) if costs.by_length else None,
        }
    }


def _object(costs: "Costs") -> dict[str, float]:
    return asdict(costs)
