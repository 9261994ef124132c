"""Nodes of a spot trace over time, and the workers that each policy made of them, as a file of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from planner.pictures.canvas import COLOURS, WIDE, figure, plain, style
from planner.pictures.timeline import time_unit
from planner.report.page.style import THEMES

_LIGHT = THEMES["light"]

_PANEL = 150
"""CSS pixels"""
_SHARP = 2
"""pixels of a PNG per CSS pixel"""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A step function: its value from each time on."""

    label: str
    times_s: Sequence[float]
    values: Sequence[float]


def capacity_picture(capacity: Steps, policies: Sequence[Steps], end_s: float, kind: Literal["svg", "png"]) -> bytes:
    """A panel for each policy: its workers, before what the nodes had room for.

    Args:
        capacity: workers that the nodes have room for.
        policies: workers of the group. At least one.
        end_s: when the trace ends.
        kind: of the file.
    """
    real = {placeholder: _LIGHT[name] for name, placeholder in COLOURS.items()}
    buffer = BytesIO()
    with style(WIDE, "capacity"), rc_context(_in_colour(real)):
        made = _draw(capacity, policies, end_s)
        made.savefig(buffer, format=kind, dpi=made.dpi * (_SHARP if kind == "png" else 1), **_as_file(kind))
    return buffer.getvalue()


def _as_file(kind: str) -> dict[str, Any]:
    """How it is saved: without a date, so that equal results give equal files."""
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else {"Software": None}
    return {"metadata": metadata, "facecolor": _LIGHT["page"]}


def _in_colour(real: Mapping[str, str]) -> dict[Any, Any]:
    """The settings whose value is a placeholder of a colour, with the colour."""
    return {key: real[value] for key, value in rcParams.items() if isinstance(value, str) and value in real}


def _draw(capacity: Steps, policies: Sequence[Steps], end_s: float) -> Figure:
    unit, second = time_unit(end_s)
    made = figure(WIDE, _PANEL * len(policies) + 4 * WIDE.font)
    all_axes = made.subplots(len(policies), 1, sharex=True, squeeze=False)
    top = max([*capacity.values, *(value for each in policies for value in each.values), 1])
    for axes, policy in zip((row[0] for row in all_axes), policies, strict=True):
        x, y = _stairs(capacity, end_s, second)
        axes.fill_between(x, y, color=_LIGHT["grid"], linewidth=0, zorder=1)
        axes.plot(x, y, color=_LIGHT["muted"], linewidth=1, zorder=2)
        axes.plot(*_stairs(policy, end_s, second), color=_LIGHT["workers"], linewidth=1.5, zorder=3)
        axes.set_title(plain(policy.label))
        axes.set_ylim(0, top * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 4, 5, 10], integer=True))  # no half workers
        axes.set_xlim(0, end_s / second)
    all_axes[-1][0].set_xlabel(f"{unit}. Grey: {plain(capacity.label)}. Line: workers of the group")
    made.tight_layout(pad=0.6)
    return made


def _stairs(steps: Steps, end_s: float, second: float) -> tuple[list[float], list[float]]:
    """The corners of a step function, from 0 to the end."""
    x, y, last = [0.0], [0.0], 0.0
    for time_s, value in zip(steps.times_s, steps.values, strict=True):
        x += [time_s / second] * 2
        y += [last, value]
        last = value
    return [*x, end_s / second], [*y, last]
