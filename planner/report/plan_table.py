"""Plans as the table of `planner plan`, and as JSON."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.plan.plan import Fit
from planner.report.text_columns import aligned, columns_of, hanging, spans, wrapped

if TYPE_CHECKING:  # it imports numpy, which a plan without a cluster does not need
    from planner.cluster.reachable_counts import Mix

_COLUMNS = ("GPUs", "used", "split", "micro-batch", "rounds", "cost", "efficiency")
# The cost without exact bits, and what they add.
_BITWISE_COLUMNS = (*_COLUMNS, "balanced cost", "split cost")
_NOT_KNOWN: Mapping[int, Fit] = {}

BY_LENGTH = "by length"
"""instead of a split, where the lengths of each step's samples decide it"""

Mixes = Mapping[int, "Mix"]
"""world size -> the nodes that it runs on"""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One more column of the table."""

    title: str
    cells: Mapping[int, str]
    """world size -> text, for every row"""


def split_text(shares: Iterable[tuple[int, int | str]]) -> str:
    """`4 x 19 + 3 x 18`: four workers with 19 samples each, three with 18."""
    return " + ".join(f"{count} x {samples}" for count, samples in shares)


def plan_split(plan: Plan) -> str:
    """`split_text` of a plan. By length, each step has another split."""
    return BY_LENGTH if isinstance(plan, ByLength) else split_text(plan.shares)


def plan_table(
    plans: Sequence[Plan],
    width: int | None = None,
    mixes: Mixes | None = None,
    *,
    extra: Sequence[Column] = (),
    sample_tokens: int | None = None,
    fits: Mapping[int, Fit] = _NOT_KNOWN,
    fewest: int = 1,
) -> list[str]:
    """Return a header, then a row per world size, then what would be a note of several rows.

    Args:
        plans: one per row.
        width: columns of the terminal. Notes are wrapped to it. None leaves each row on one line.
        mixes: the nodes of each world size, for a column of its own, or for the notes if the column does not fit.
        extra: more columns, which follow the plan's own.
        sample_tokens: tokens of each sample. None if that is not known.
        fits: whether the micro-batches of each world size fit. Empty if that is not known.
        fewest: the smallest world size that fits. 1 if that is not known.
    """
    own = _BITWISE_COLUMNS if any(plan.mode == "bitwise" for plan in plans) else _COLUMNS
    columns = (*own, *(column.title for column in extra))
    rows = [columns, *((*_cells(plan), *(column.cells[plan.world_size] for column in extra)) for plan in plans)]
    lines = aligned(rows, left={2})
    fit_of = {plan.world_size: fits.get(plan.world_size, "unknown") for plan in plans}
    shared = _shared(plans, sample_tokens, fit_of, fewest)
    of_rows = [plan.notes(sample_tokens, fit_of[plan.world_size], fewest) for plan in plans]
    warnings = [[text for text in texts if text not in shared] for texts in of_rows]
    notes = ["; ".join(texts) for texts in warnings]
    if mixes is not None:
        nodes = [_nodes_text(mixes[plan.world_size], plan.world_size) for plan in plans]
        wide = aligned(
            [(*row, cell) for row, cell in zip(rows, ["nodes", *nodes], strict=True)], left={2, len(columns)}
        )
        if width is None or columns_of(wide[0]) <= width:
            lines = wide
        else:
            notes = ["; ".join(filter(None, pair)) for pair in zip(map("nodes: {}".format, nodes), notes, strict=True)]
    table = [f"{lines[0]}  notes" if any(notes) else lines[0].rstrip()]
    for line, note in zip(lines[1:], notes, strict=True):
        table += hanging(f"{line}  ", note, width)
    for text, counts in shared.items():
        table += ["", *wrapped(f"{spans(sorted(counts))} GPUs: {text}", width, later="")]
    return table


def _shared(
    plans: Sequence[Plan], sample_tokens: int | None, fits: Mapping[int, Fit], fewest: int
) -> dict[str, list[int]]:
    """The notes on communication that several rows have, which would fill the table. Text -> their world sizes."""
    found: dict[str, list[int]] = {}
    for plan in plans:
        if text := plan.communication_bound(sample_tokens, fits[plan.world_size], fewest):
            found.setdefault(text, []).append(plan.world_size)
    return {text: counts for text, counts in found.items() if len(counts) > 1}


def _nodes_text(mix: "Mix", world_size: int) -> str:
    """`2 x g6.xlarge + 1 x g6.12xlarge`, with the number of idle GPUs if there are any."""
    nodes = split_text(mix.nodes)
    return nodes if mix.num_workers == world_size else f"{nodes} ({mix.num_workers - world_size} idle)"


def _cells(plan: Plan) -> tuple[str, ...]:
    cells = (
        str(plan.world_size),
        str(plan.workers_used),
        split_text(plan.shares),
        str(plan.max_micro_batch),
        str(plan.accumulation_steps),
        str(plan.step_cost),
        f"{plan.efficiency:.1%}",
    )
    if plan.mode != "bitwise":
        return cells
    extra = plan.step_cost / plan.balanced_cost - 1
    return (*cells, str(plan.balanced_cost), f"+{extra:.0%}" if extra else "free")


def plan_json(
    plans: Sequence[Plan],
    mixes: Mixes | None = None,
    more: Callable[[Plan], dict[str, object]] = lambda _plan: {},
    *,
    sample_tokens: int | None = None,
    fits: Mapping[int, Fit] = _NOT_KNOWN,
    fewest: int = 1,
) -> str:
    """A JSON list with one object per plan. The keys are a public interface (see docs/reference).

    Args:
        plans: one per object.
        mixes: the nodes of each world size, for a key of its own.
        more: plan -> further keys of its object.
        sample_tokens: tokens of each sample. None if that is not known.
        fits: whether the micro-batches of each world size fit. Empty if that is not known.
        fewest: the smallest world size that fits. 1 if that is not known.
    """
    objects = [
        {**plan_object(plan, sample_tokens, fits.get(plan.world_size, "unknown"), fewest), **more(plan)}
        for plan in plans
    ]
    if mixes is not None:
        objects = [{**made, "nodes": mixes[plan.world_size].nodes} for made, plan in zip(objects, plans, strict=True)]
    return json.dumps(objects, indent=1)


def plan_object(
    plan: Plan, sample_tokens: int | None = None, fit: Fit = "unknown", fewest: int = 1
) -> dict[str, object]:
    """A plan as a JSON object. The other arguments are those of its notes (`Plan.notes`)."""
    return {
        "world_size": plan.world_size,
        "workers_used": plan.workers_used,
        "global_batch": plan.global_batch,
        "accumulation_steps": plan.accumulation_steps,
        "max_micro_batch": plan.max_micro_batch,
        "step_cost": plan.step_cost,
        "balanced_step_cost": plan.balanced_cost,
        "shares": [list(share) for share in plan.shares],
        "efficiency": plan.efficiency,
        "mode": plan.mode,
        "digest": plan.digest,
        "warnings": list(plan.notes(sample_tokens, fit, fewest)),
    }
