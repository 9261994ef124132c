"""What policies made of a spot trace, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.base.text import counted, duration
from planner.report.text_columns import aligned, hanging, wrapped
from planner.simulation.outcome import Change, Outcome
from planner.wording.event_text import text_of_all

_COLUMNS = ("policy", "useful", "trained", "paused", "redone", "idle", "commits", "resizes", "losses")
_MOST_SHOWN = 12
_WHAT = {
    "starts": "a group starts",
    "lost": "a node of the group is lost",
    "stops": "the group stops",
    "warms": "newcomers start",
    "calls off": "newcomers are called off",
    "waits": "",
}


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What was simulated."""

    job: str
    trace: str
    """a file, or the text of its rates"""
    nodes: int
    """the most at any time"""
    usual_nodes: int
    """the median over time"""
    losses: int
    """of nodes"""
    total_s: float
    seed: int | None
    """None: nothing is drawn"""
    assumed: Sequence[str]
    source: str = "assumed"
    """what stands before each of these sentences"""


def simulation_lines(heading: Heading, outcomes: Sequence[Outcome], width: int | None) -> list[str]:
    """A heading, a row per policy, and the first changes of the first policy."""
    trace = (
        f"{heading.trace}: {duration(heading.total_s)}, at most {counted(heading.nodes, 'node')}, "
        f"at least {heading.usual_nodes} for half of the time, {counted(heading.losses, 'node')} lost"
        f"{'' if heading.seed is None else f', seed {heading.seed}'}"
    )
    texts = [f"{heading.job} on {trace}", *(f"{heading.source}: {text}" for text in heading.assumed)]
    rows = [_COLUMNS, *map(_row, outcomes)]
    return [
        *(line for text in texts for line in wrapped(text, width)),
        "",
        *aligned(rows, left={0}),
        "",
        *_legend(outcomes, width),
        *_timeline(next((each for each in outcomes if each.policy != "run"), outcomes[0]), width),
    ]


def _row(outcome: Outcome) -> tuple[str, ...]:
    total_s = outcome.total_s or 1.0
    times = (outcome.useful_s, outcome.paused_s, outcome.redone_s, outcome.idle_s, outcome.commit_s)
    return (
        outcome.policy,
        f"{outcome.useful_over_ideal:.3f}",
        *(f"{seconds / total_s:.1%}" for seconds in times),
        str(outcome.resizes),
        str(outcome.losses),
    )


def _legend(outcomes: Sequence[Outcome], width: int | None) -> list[str]:
    names = {outcome.policy for outcome in outcomes}
    about = {
        "run": "run: what the run itself did",
        "ours": "ours: planner's own controller",
        "stock": "stock: Ray Train's elastic policy at its defaults",
        "fixed": "fixed: as many workers as there are nodes for at least half of the time",
        "divisors": "divisors: planner's controller, with divisors of the global batch alone",
        "fair": "fair: knows when nodes go, but not which (approximate)",
        "optimum": "optimum: knows everything, so its groups lose no node",
    }
    useful = (
        "useful: steps that count, over those of a run that uses each node while it is there, and never pauses. "
        "Percentages are of the trace's time"
    )
    texts = [useful, *(text for name, text in about.items() if name in names)]
    return [line for text in texts for line in wrapped(text, width)]


def _timeline(outcome: Outcome, width: int | None) -> list[str]:
    changes = [change for change in outcome.changes if change.what != "waits"]
    if not changes:
        return []
    shown = changes[:_MOST_SHOWN]
    rest = len(changes) - len(shown)
    cells = [("time", "nodes", "workers"), *(_cells(change) for change in shown)]
    header, *lines = aligned(cells)
    texts = [change_text(change) for change in shown]
    return [
        "",
        f"{outcome.policy}, the first changes",
        f"{header}  what",
        *(line for row, text in zip(lines, texts, strict=True) for line in hanging(f"{row}  ", text, width)),
        *([f"... and {rest} more (--json has all, --plot draws them)"] if rest else []),
    ]


def _cells(change: Change) -> tuple[str, str, str]:
    return (clock(change.time_s), str(change.nodes), str(change.workers))


def clock(time_s: float) -> str:
    """Hours, minutes and seconds of a trace, such as `1:05:30`."""
    minutes, seconds = divmod(int(time_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def change_text(change: Change) -> str:
    """What happened, and why in the product's own words."""
    why = text_of_all(change.events)
    return ": ".join(filter(None, (_WHAT[change.what], why)))


def outcome_value(outcome: Outcome) -> dict[str, Any]:
    """One policy's result as JSON."""
    return {
        "policy": outcome.policy,
        "useful_over_ideal": outcome.useful_over_ideal,
        "steps": outcome.steps,
        "total_s": outcome.total_s,
        "useful_s": outcome.useful_s,
        "paused_s": outcome.paused_s,
        "redone_s": outcome.redone_s,
        "idle_s": outcome.idle_s,
        "commit_s": outcome.commit_s,
        "resizes": outcome.resizes,
        "commits": outcome.commits,
        "losses": outcome.losses,
        "changes": [
            {
                "time_s": change.time_s,
                "nodes": change.nodes,
                "workers": change.workers,
                "what": change.what,
                "reason": text_of_all(change.events),
            }
            for change in outcome.changes
        ],
    }


def simulation_value(heading: Heading, outcomes: Sequence[Outcome], *, is_one: bool) -> dict[str, Any]:
    """The document that `--json` prints. With one policy, its keys stand at the top."""
    about = {
        "job": heading.job,
        "trace": heading.trace,
        "seed": heading.seed,
        "nodes": heading.nodes,
        "nodes_lost": heading.losses,
        "assumed": list(heading.assumed),
    }
    values = [outcome_value(outcome) for outcome in outcomes]
    return {**about, **(values[0] if is_one else {"policies": values})}
