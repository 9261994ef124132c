"""What `planner probe` found: a table with sentences, and JSON."""

import json
import math
from collections.abc import Sequence

from planner.base.disk import size_text
from planner.base.text import counted
from planner.probe.figures import Figure, Probed, gain_text, unsteady_text
from planner.report.text_columns import aligned, wrapped

_DIGITS = 3


def probe_text(probed: Probed, width: int | None = None) -> list[str]:
    """Return the table, what it means, and the value to pass to `planner plan`. `width` is that of the terminal."""
    rows = [("what", "where", "median", "lowest to highest", "how"), *map(_row, probed.figures)]
    table = [line.rstrip() for line in aligned(rows, left={0, 1, 4})]
    if (
        width is not None and len(max(table, key=len)) > width
    ):  # the last column explains, and the numbers do not need it
        table = [line.rstrip() for line in aligned([row[:-1] for row in rows], left={0, 1})]
    sentences = [*_meaning(probed), *filter(None, [unsteady_text(probed.together)]), *probed.notes]
    return [
        f"storage at {probed.path}, {counted(len(probed.nodes), 'node')}: {', '.join(probed.nodes)}",
        "",
        *table,
        "",
        *(line for sentence in sentences for line in wrapped(sentence, width)),
        "",
        _advice(probed),
    ]


def _advice(probed: Probed) -> str:
    value = f"For planner plan: --storage-gbps {number(_storage_gbps(probed))}"
    if not unsteady_text(probed.together):
        return value
    return f"{value} (the median), or {number(min(probed.together.values))} (the lowest)"


def probe_json(probed: Probed) -> str:
    """One JSON object (see docs/reference/json.md)."""
    found = {
        "path": probed.path,
        "nodes": list(probed.nodes),
        "storage_gbps": _storage_gbps(probed),
        "figures": [_object(figure) for figure in probed.figures],
        "notes": list(probed.notes),
    }
    return json.dumps(found, indent=1)


def number(value: float) -> str:
    """Three significant digits without an exponent: `0.00123`, `0.42`, `1.3`, `123`."""
    if value <= 0:
        return "0"
    text = f"{value:.{max(_DIGITS - 1 - math.floor(math.log10(value)), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _storage_gbps(probed: Probed) -> float:
    """What all nodes write together, in 10^9 bytes per second, with three digits."""
    return float(number(probed.together.median))


def _meaning(probed: Probed) -> Sequence[str]:
    if probed.together is probed.alone:
        return [f"{probed.nodes[0]} writes {number(probed.alone.median)} GB/s (10^9 bytes per second)."]
    together, alone = probed.together.median, probed.alone.median
    return [
        f"All {len(probed.nodes)} nodes together write {number(together)} GB/s (10^9 bytes per second).",
        f"{probed.alone.where} writes {number(alone)} GB/s. {gain_text(alone, together, len(probed.nodes))}",
    ]


def _row(figure: Figure) -> tuple[str, ...]:
    spread = f"{number(min(figure.values))} to {number(max(figure.values))}"
    how = f"{len(figure.values)} x {size_text(figure.num_bytes)}{', ' if figure.how else ''}{figure.how}"
    return (figure.what, figure.where, f"{number(figure.median)} {figure.unit}", spread, how)


def _object(figure: Figure) -> dict[str, object]:
    return {
        "what": figure.what,
        "where": figure.where,
        "unit": figure.unit,
        "median": figure.median,
        "lowest": min(figure.values),
        "highest": max(figure.values),
        "repeats": len(figure.values),
        "bytes": figure.num_bytes,
        "how": figure.how,
    }
