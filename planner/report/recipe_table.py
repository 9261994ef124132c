"""The texts of `planner convert` and `planner check`: what became of a recipe's keys, and its table of GPU counts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.base.text import counted
from planner.errors import printable
from planner.plan import Plan
from planner.recipes import BatchOutcome, CheckOptions, Note, Recipe, Rewrite, ToDo
from planner.recipes.split import Span, percent
from planner.report.plan_table import plan_object, split_text
from planner.report.text_columns import aligned, hanging, wrapped

_WIDTH = 100
_MOST_SPANS = 3
_HEADER = ("GPUs", "there", "evaluates", "planner: split", "micro", "rounds", "efficiency")
_LEFT = {1, 2, 3}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row of a check's table."""

    text: str
    verdict: str
    span: tuple[int, int]
    """position of the verdict in the text, half-open"""


# -- the texts of a conversion


def conversion_lines(recipe: Recipe, width: int | None = None) -> list[str]:
    """What was carried over, derived and dropped, and what the user has to do, wrapped to `width` columns."""
    draft = recipe.draft
    lines = [f"{printable(recipe.source)}: {recipe_text(recipe)}"]
    derived = [*(Note(key="", text=each) for each in recipe.repeats), *draft.derived]
    for title, notes in (("carried over", draft.carried), ("derived", derived), ("dropped", draft.dropped)):
        lines += _listed(title, _together(notes, is_keyed=title != "derived"), width, title != "dropped")
    lines += ["", "to do"] if draft.to_do else []
    for number, each in enumerate(draft.to_do, start=1):
        lines += _with_commands(f"{number}. ", each, width, "  ", "    ")
    return lines


def recipe_text(recipe: Recipe) -> str:
    """`TRL, dpo, batch 128, tuned for 8 GPUs`."""
    tuned = f", tuned for {counted(recipe.gpus, 'GPU')}" if recipe.gpus else ""
    method = printable(str(recipe.method))
    return f"{recipe.title}, {method}, {counted(recipe.global_batch, recipe.unit)} per step{tuned}"


def _together(notes: Sequence[Note], *, is_keyed: bool) -> list[tuple[str, str]]:
    """Pairs of keys and text. Keys with the same text are joined."""
    if not is_keyed:
        return [("", note.text) for note in notes]
    by_text: dict[str, list[str]] = {}
    for note in notes:
        by_text.setdefault(note.text, []).append(note.key)
    return [(", ".join(dict.fromkeys(keys)), text) for text, keys in by_text.items()]


def _listed(title: str, items: Sequence[tuple[str, str]], width: int | None, points: bool) -> list[str]:
    if not items:
        return []
    lines = ["", title]
    for key, text in items:
        mark = f"{key}{' -> ' if points else ': '}" if key else ""
        lines += wrapped(printable(f"{mark}{text}"), width, "  ", "    ")
    return lines


def _with_commands(mark: str, its: ToDo, width: int | None, first: str, later: str) -> list[str]:
    """A text, wrapped. Below it its commands, each whole on a line, so that it can be copied."""
    lines = wrapped(printable(f"{mark}{its.text}"), width, first, later)
    return [*lines, *(f"{later}{printable(each)}" for each in its.commands)]


def rewrite_lines(recipe: Recipe, made: Rewrite, gpus: int, width: int | None = None) -> list[str]:
    """The command and the file for another system, with notes as comments, wrapped to `width` columns."""
    lines = [f"# {recipe_text(recipe)}", f"# at {counted(gpus, 'GPU')}: {made.arithmetic}"]
    lines += [f"# {line}" for note in (*recipe.repeats, *made.notes) for line in wrapped(note, width)]
    lines += [line for note in made.unsaid for line in _with_commands("", note, width, "# not said: ", "#   ")]
    lines += [made.command, *(["", *made.file.rstrip("\n").split("\n")] if made.file else [])]
    # A DeepSpeed file may contain tabs. Every other control character is escaped.
    return ["\t".join(printable(part) for part in line.split("\t")) for line in lines]


# -- the table of a check


def check_lines(recipe: Recipe, plans: Sequence[Plan], *, knows_micro: bool) -> tuple[list[str], str, list[TableRow]]:
    """Return the heading, the table's header and its rows. `knows_micro`: the recipe's micro-batch is known."""
    assert recipe.foreign is not None
    outcomes = [recipe.foreign.outcome(plan.world_size) for plan in plans]
    cells = [_cells(recipe, *pair, knows_micro=knows_micro) for pair in zip(outcomes, plans, strict=True)]
    header = tuple(recipe.title if name == "there" else name for name in _HEADER)
    table = [header, *cells]
    # A column without content in any row is left out.
    kept = [index for index in range(len(header)) if any(row[index] not in {"", "-"} for row in cells)]
    table = [tuple(row[index] for index in kept) for row in table]
    left = {position for position, index in enumerate(kept) if index in _LEFT}
    lines = [line.rstrip() for line in aligned(table, left=left)]
    start = max(len(row[0]) for row in table) + 2
    rows = [
        TableRow(text=line, verdict=outcome.verdict, span=(start, start + len(row[1])))
        for line, outcome, row in zip(lines[1:], outcomes, table[1:], strict=True)
    ]
    return [f"{printable(recipe.source)}: {recipe_text(recipe)}"], lines[0], rows


def _cells(recipe: Recipe, outcome: BatchOutcome, plan: Plan, *, knows_micro: bool) -> tuple[str, ...]:
    here = (str(plan.max_micro_batch), str(plan.accumulation_steps)) if knows_micro else ("", "")
    there = _there(recipe.global_batch, outcome)
    return (str(outcome.gpus), there, outcome.eval_text, split_text(plan.shares), *here, f"{plan.efficiency:.1%}")


def _there(batch: int, outcome: BatchOutcome) -> str:
    if outcome.verdict == "error":
        return outcome.text if outcome.is_raised else f"error: {outcome.text}"
    if outcome.verdict == "exact":
        return "exact"
    assert outcome.batch is not None
    off = f"({percent(outcome.batch, batch):+.1f}%)"
    if not outcome.dropped:
        return f"{outcome.batch}, not {batch} {off}"
    return f"{outcome.batch} of {batch} {off}: drops {span_text(outcome.dropped)}"


def span_text(spans: Sequence[Span]) -> str:
    """Return positions of a batch, such as `30-31, 62-63`. After three ranges only the number of others follows."""
    ranges = [str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in spans]
    left = len(ranges) - _MOST_SPANS
    more = f" and {left} more range{'s' * (left > 1)}" if left > 0 else ""
    return ", ".join(ranges[:_MOST_SPANS]) + more


def summary_line(recipe: Recipe, plans: Sequence[Plan]) -> str:
    """`DPO repository: exact at 4 of 16 counts, silently another batch at 12. planner: exact at 16 of 16.`."""
    assert recipe.foreign is not None
    outcomes = [recipe.foreign.outcome(plan.world_size) for plan in plans]
    number = {
        verdict: sum(each.verdict == verdict for each in outcomes) for verdict in ("exact", "other batch", "error")
    }
    parts = [f"exact at {number['exact']} of {len(outcomes)} counts"]
    parts += [f"silently another batch at {number['other batch']}"] if number["other batch"] else []
    parts += [f"an error at {number['error']}"] if number["error"] else []
    exact = sum(_is_exact(recipe, plan) for plan in plans)
    return f"{recipe.title}: {', '.join(parts)}. planner: exact at {exact} of {len(plans)}."


def _is_exact(recipe: Recipe, plan: Plan) -> bool:
    """Whether the shares of all workers add up to the recipe's batch."""
    return sum(workers * samples for workers, samples in plan.shares) == recipe.global_batch


def unit_lines(recipe: Recipe, width: int | None = None) -> list[str]:
    """A table of the recipe's numbers whose units differ: their meaning there, and the setting of a job here."""
    assert recipe.foreign is not None
    units = recipe.foreign.units()
    if not units:
        return []
    table = aligned([("key", "value", "there"), *((each.key, each.value, each.there) for each in units)], left={0, 2})
    here = ["planner", *(each.here for each in units)]
    return [row for line, text in zip(table, here, strict=True) for row in hanging(f"{line}  ", text, width)]


def trap_lines(recipe: Recipe, question: CheckOptions, width: int | None = None) -> list[str]:
    """The traps that the table does not show, each in a sentence or two, wrapped to `width` columns."""
    return [
        line
        for trap in recipe.traps(question)
        for line in wrapped(printable(f"{trap.name}: {trap.text}"), width or _WIDTH, "  ", "    ")
    ]


def check_json(recipe: Recipe, plans: Sequence[Plan], question: CheckOptions) -> str:
    """One JSON object. Its keys are a public interface (docs/guides/your-recipe.md)."""
    assert recipe.foreign is not None
    counts = list(_count_objects(recipe, plans))
    made = {
        "recipe": recipe.source,
        "system": recipe.system,
        "method": recipe.method,
        "unit": recipe.unit,
        "global_batch": recipe.global_batch,
        "tuned_for": recipe.gpus,
        "exact_there": [each["gpus"] for each in counts if each["verdict"] == "exact"],
        "exact_here": [plan.world_size for plan in plans if _is_exact(recipe, plan)],
        "counts": counts,
        "units": [
            {"key": each.key, "value": each.value, "there": each.there, "here": each.here}
            for each in recipe.foreign.units()
        ],
        "traps": [{"name": trap.name, "text": trap.text} for trap in recipe.traps(question)],
    }
    return json.dumps(made, indent=1)


def _count_objects(recipe: Recipe, plans: Sequence[Plan]) -> Iterator[dict[str, object]]:
    assert recipe.foreign is not None
    for plan in plans:
        outcome = recipe.foreign.outcome(plan.world_size)
        off = None if outcome.batch is None else round(percent(outcome.batch, recipe.global_batch), 2)
        yield {
            "gpus": outcome.gpus,
            "verdict": outcome.verdict,
            "batch": outcome.batch,
            "percent": off,
            "error": outcome.text or None,
            "dropped": [list(span) for span in outcome.dropped],
            "eval": outcome.eval_text,
            "planner": plan_object(plan),
        }
