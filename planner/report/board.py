"""The live board of `planner watch`: what was seen of a run -> lines of styled text for a terminal of any size."""

import math
from collections.abc import Sequence
from itertools import chain

from planner.base.text import counted, duration
from planner.errors import printable
from planner.report.loss_curve import Points, loss_curve
from planner.report.run_table import Event
from planner.report.run_view import metric_texts, plan_text, speed_texts
from planner.report.text_columns import ago, aligned, columns_of, spans, wrapped
from planner.report.watched_run import Seen, Style, run_state
from planner.store.run_status import WorkerStatus
from planner.story.run_story import RunStory

Line = tuple[tuple[str, Style], ...]
"""pieces of one row, each with its style"""

_SIDE_BY_SIDE = 110
_KEY = 11
_MOST_NEXT_LINES = 3
_BAR = 20
_MOST_CURVE_ROWS = 18


def board(
    seen: Seen, width: int, height: int, now_s: float, *, footer: str = "", ascii_only: bool = False
) -> list[Line]:
    """The board, in at most `height` lines of at most `width` columns.

    Args:
        seen: the run.
        width: columns of the terminal.
        height: rows of the terminal.
        now_s: seconds since the epoch.
        footer: the last line.
        ascii_only: use no character beyond ASCII for drawings.
    """
    top = _top(seen, width, now_s, ascii_only=ascii_only)
    rows = height - len(top) - bool(footer)
    if width >= _SIDE_BY_SIDE:
        left_width = width * 55 // 100
        left = _nodes_and_events(seen, left_width - 2, rows, now_s)
        right = _curve(seen.losses, width - left_width, rows, ascii_only=ascii_only)
        body = _beside(left, right, left_width)
    else:
        body = _stacked(seen, width, rows, now_s, ascii_only=ascii_only)
    blank = max(height - bool(footer) - len(top) - len(body), 0)
    last: list[Line] = [((footer, "dim"),)] if footer else []
    lines = [*top, *body, *([()] * blank), *last]
    return [_cut(line, width) for line in [*lines[: height - len(last)], *last]]


def _top(seen: Seen, width: int, now_s: float, *, ascii_only: bool) -> list[Line]:
    """The run's name and state, and its facts."""
    state, story = run_state(seen), seen.story
    word = f" {state.word} "
    name = _clipped(printable(seen.url), width - columns_of(word) - 1)
    gap = " " * max(width - columns_of(name) - columns_of(word), 1)
    lines: list[Line] = [((name, "bold"), (gap, ""), (word, state.style))]
    if seen.store_error:
        lines += _fact("store", f"does not answer: {seen.store_error}. planner tries again", width, "bad", most=2)
    lines += _fact("state", state.text, width, most=5)
    if story.header:
        lines += _fact("step", _progress(story, is_running=seen.driver == "alive", ascii_only=ascii_only), width)
        lines += _fact("speed", "   ".join(speed_texts(story)), width, most=2)
        lines += _fact("loss", _loss(story), width)
        lines += _fact("workers", _workers(seen), width, most=2)
    if story.header or seen.committed_time_s:
        lines += _fact("durable", _durable(seen, now_s), width)
    if seen.status is not None and seen.driver == "alive":
        lines += _fact("next", seen.status.next, width, "bold", most=_MOST_NEXT_LINES)
    return [*lines, ()]


def _fact(key: str, text: str, width: int, style: Style = "", most: int = 1) -> list[Line]:
    """`key   text` in at most `most` lines. Nothing without a text."""
    if not text:
        return []
    # `wrapped` never goes below 40 columns. Longer lines are cut at the end.
    lines = wrapped(printable(text), width - _KEY, later="") if most > 1 else [printable(text)]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."]
    keys = [f"{key:<{_KEY}}", *([" " * _KEY] * (len(lines) - 1))]
    return [((name, "dim"), (_clipped(line, width - _KEY), style)) for name, line in zip(keys, lines, strict=True)]


def _progress(story: RunStory, *, is_running: bool, ascii_only: bool) -> str:
    if not story.total_steps:
        return f"{story.step}"
    part = min(story.step / story.total_steps, 1.0)
    full = math.floor(part * _BAR)
    done, left = ("#", ".") if ascii_only else ("█", "░")
    global_batch = story.header.identity.global_batch if story.header else 0
    remaining = max(story.total_steps - story.step, 0) * global_batch
    is_timed = is_running and remaining and story.samples_per_s
    end = f"   {duration(remaining / story.samples_per_s)} left" if is_timed else ""
    return f"{story.step} of {story.total_steps}   {done * full}{left * (_BAR - full)} {part:.0%}{end}"


def _loss(story: RunStory) -> str:
    if story.loss is None:
        return ""
    held_out = [f"held out {story.last_eval.loss:.4f}"] if story.last_eval else []
    return "   ".join([f"{story.loss:.4f}", *metric_texts(story.metrics), *held_out])


def _workers(seen: Seen) -> str:
    story, status = seen.story, seen.status
    bounds = f" (min {status.least}, max {status.most})" if status else ""
    return (
        f"{story.world_size}{bounds}   {plan_text(story.plan)}   global batch "
        f"{story.header.identity.global_batch if story.header else 0}   generation {story.generation}"
    )


def _durable(seen: Seen, now_s: float) -> str:
    """`step 36, 12 s ago`, and the step that is held if a later one is in memory."""
    durable = (
        f"step {seen.committed_step}, {ago(seen.committed_time_s, now_s)}" if seen.committed_time_s else "nothing yet"
    )
    status = seen.status if seen.driver == "alive" else None
    is_ahead = status is not None and status.held_step > max(status.durable_step, seen.committed_step)
    return f"{durable}   held: step {status.held_step}" if status is not None and is_ahead else durable


# -- below it


def _stacked(seen: Seen, width: int, rows: int, now_s: float, *, ascii_only: bool) -> list[Line]:
    """Nodes, the curve and events, one below the other."""
    nodes = _nodes(seen, max(rows // 3, 3))
    left = rows - len(nodes)
    curve = _curve(seen.losses, width, min(left - 4, max(left // 2, 7), _MOST_CURVE_ROWS), ascii_only=ascii_only)
    events = _events(seen.events, width, left - len(curve), now_s)
    return [*nodes, *curve, *events]


def _nodes_and_events(seen: Seen, width: int, rows: int, now_s: float) -> list[Line]:
    nodes = _nodes(seen, max(rows // 2, 3))
    return [*nodes, *_events(seen.events, width, rows - len(nodes), now_s)]


def _nodes(seen: Seen, rows: int) -> list[Line]:
    """A heading, a row per node with its workers, and an empty line."""
    status = seen.status
    if status is None or seen.driver != "alive" or not status.nodes or rows < 3:
        return []
    on: dict[str, list[WorkerStatus]] = {node.node: [] for node in status.nodes}
    for worker in status.workers:
        on.setdefault(worker.node, []).append(worker)
    hosts = {node.node: node.host for node in status.nodes}
    notices = {node.node: _notice(node.leaves_s, status.time_s) for node in status.nodes if node.has_notice}
    cells = [
        (printable(node[:8]) or "no place", printable(hosts.get(node, "")), _of_node(workers), notices.get(node, ""))
        for node, workers in on.items()
    ]
    shown = cells if len(cells) <= rows - 2 else cells[: rows - 3]
    lines: list[Line] = []
    if shown:
        heading, *table = aligned([("node", "host", "workers", ""), *shown], left={0, 1, 2, 3})
        lines.append(((heading.rstrip(), "bold"),))
        lines += (((row.rstrip(), "bold" if cell[3] else ""),) for row, cell in zip(table, shown, strict=True))
    if len(shown) < len(cells):
        rest = [worker for node in list(on)[len(shown) :] for worker in on[node]]
        more = counted(len(cells) - len(shown), "more node" if shown else "node")
        lines.append(((f"{'and ' if shown else ''}{more}: {_counts(rest)}", ""),))
    return [*lines, ()]


def _notice(leaves_s: float | None, now_s: float) -> str:
    return "has notice" if leaves_s is None else f"leaves in {duration(max(leaves_s - now_s, 0.0))}"


def _of_node(workers: Sequence[WorkerStatus]) -> str:
    """`ranks 0-3 training, 4 parked`, `newcomer warming`, or `free`."""
    ranks: dict[str, list[int]] = {}
    for worker in workers:
        if worker.rank is not None:
            ranks.setdefault(worker.state, []).append(worker.rank)
    texts = [f"{spans(sorted(found), 4)} {state}" for state, found in ranks.items()]
    num_newcomers = sum(worker.rank is None for worker in workers)
    group = [f"{'rank' if sum(map(len, ranks.values())) == 1 else 'ranks'} {', '.join(texts)}"] if texts else []
    newcomers = [f"{counted(num_newcomers, 'newcomer')} warming"] if num_newcomers else []
    return ", ".join([*group, *newcomers]) or "free"


def _counts(workers: Sequence[WorkerStatus]) -> str:
    """`12 training, 3 parked`."""
    counts: dict[str, int] = {}
    for worker in workers:
        counts[worker.state] = counts.get(worker.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "free"


def _curve(losses: Points, width: int, rows: int, *, ascii_only: bool) -> list[Line]:
    """A heading, the curve, and an empty line. Nothing if it has no space."""
    drawn = loss_curve(losses, width, rows - 2, ascii_only=ascii_only) if rows >= 5 else []
    if not drawn:
        return []
    return [(("loss", "bold"),), *(((line, ""),) for line in drawn), ()]


def _events(events: Sequence[Event], width: int, rows: int, now_s: float) -> list[Line]:
    """A heading, and the newest events that fit, newest first."""
    if rows < 2 or not events:
        return []
    blocks = (_event(event, width, now_s) for event in reversed(events))
    lines = list(chain.from_iterable(blocks))
    return [(("events, newest first", "bold"),), *lines[: rows - 1]]


def _event(event: Event, width: int, now_s: float) -> list[Line]:
    when = f"{ago(event.time_s, now_s):>{_KEY}}"
    text = wrapped(printable(event.text), width - _KEY - 2, later="")[:3]
    heads = [when, *([" " * _KEY] * (len(text) - 1))]
    return [((head, "dim"), (f"  {line}", "")) for head, line in zip(heads, text, strict=True)]


# -- lines


def _beside(left: Sequence[Line], right: Sequence[Line], left_width: int) -> list[Line]:
    rows = max(len(left), len(right))
    padded = [*left, *([()] * (rows - len(left)))]
    others = [*right, *([()] * (rows - len(right)))]
    return [
        (*_cut(line, left_width), (" " * (left_width - _columns(_cut(line, left_width))), ""), *other)
        for line, other in zip(padded, others, strict=True)
    ]


def _columns(line: Line) -> int:
    return sum(columns_of(text) for text, _ in line)


def _cut(line: Line, width: int) -> Line:
    """The line without what is beyond `width` columns."""
    pieces: list[tuple[str, Style]] = []
    left = width
    for text, style in line:
        kept = _clipped(text, left)
        if kept:
            pieces.append((kept, style))
        left -= columns_of(kept)
    return tuple(pieces)


def _clipped(text: str, width: int) -> str:
    width = max(width, 0)
    if columns_of(text) <= width:
        return text
    kept = text[:width]
    while columns_of(kept) > width:
        kept = kept[:-1]
    return kept
