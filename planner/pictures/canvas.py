"""Figures with named colours, and their SVG for a page: without ids that clash, fonts, dates or scripts.

One unit of the SVG is one CSS pixel at its natural width.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from planner.errors import printable

# Name of a colour -> the placeholder that matplotlib draws with. `to_svg` replaces it by a CSS variable or a colour.
# All differ from each other and from matplotlib's own colours.
COLOURS = {
    name: f"#fe{number:02x}0{number % 10}"
    for number, name in enumerate(
        ("text", "muted", "grid", "page", "event", "workers", *(f"series{i}" for i in range(8))), start=1
    )
}
# One dash pattern per series, so that nobody needs its colour.
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 2), (8, 2, 2, 2), (10, 4), (4, 1, 1, 1, 1, 1), (1, 3), (12, 2))
MARKERS = "osD^vPX*"
_POINTS_PER_INCH = 72
_MOST_CHARS = 40


@dataclass(frozen=True, kw_only=True)
class Size:
    """The width that a picture is drawn for."""

    name: str
    width: int
    """CSS pixels"""
    font: float
    """CSS pixels"""

    @property
    def is_narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.width < 500


NARROW = Size(name="narrow", width=360, font=11.5)
WIDE = Size(name="wide", width=1040, font=13)


@contextmanager
def style(size: Size, key: str) -> Iterator[None]:
    """A context in which figures are made and saved. `key` makes the ids of a figure's parts unique."""
    text, muted = COLOURS["text"], COLOURS["muted"]
    ticks = {"minor.size": 0, "color": muted, "labelcolor": text, "labelsize": size.font - 0.5}
    settings: dict[Any, Any] = {
        "font.size": size.font,
        "font.family": ["sans-serif"],
        "axes.titlesize": size.font,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 8,
        "axes.labelsize": size.font,
        "axes.edgecolor": muted,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "axes.unicode_minus": False,
        "grid.color": COLOURS["grid"],
        "grid.linewidth": 1,
        "xtick.major.size": 4,
        "ytick.major.size": 0,
        **{f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()},
        "text.color": text,
        "text.parse_math": False,  # a name may contain $
        "axes.labelcolor": text,
        "legend.frameon": False,
        "legend.fontsize": size.font,
        "lines.linewidth": 2,
        "hatch.linewidth": 1,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": f"planner {key} {size.name}",
        "path.simplify": True,
    }
    with rc_context(settings), warnings.catch_warnings():
        # The page's fonts draw the text. That matplotlib's own has no such character does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # A label may be wider than its picture. The table below the picture has it.
        warnings.filterwarnings("ignore", message="Tight layout not applied")
        yield


def plain(text: str) -> str:
    """A name of a run or of a metric that a picture can show: printable, and at most 40 characters."""
    text = printable(text)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 3]}..."


def figure(size: Size, height: float) -> Figure:
    """An empty figure. The height is in CSS pixels."""
    made = Figure(figsize=(size.width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH)
    FigureCanvasSVG(made)
    return made


def inset(made: Figure, *, left: float, right: float, top: float, bottom: float, hspace: float = 0.0) -> None:
    """Set the margins in CSS pixels, and the gap between panels in panels' heights."""
    width, height = (inches * _POINTS_PER_INCH for inches in made.get_size_inches())
    made.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height, hspace=hspace
    )


def mark_times(axes: Axes, at: Sequence[float]) -> None:
    """A dashed line from top to bottom at each x, all of them one path."""
    gap = float("nan")
    x = [value for each in at for value in (each, each, gap)]
    y = [value for _ in at for value in (0.0, 1.0, gap)]
    style: dict[str, Any] = {"color": COLOURS["event"], "linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 2}
    axes.plot(x, y, transform=axes.get_xaxis_transform(), scalex=False, scaley=False, **style)


def to_svg(made: Figure, colour: Callable[[str], str]) -> str:
    """The SVG of a figure as text.

    Args:
        made: the figure, made within `style`.
        colour: the CSS value of a named colour, such as `var(--text)`.
    """
    buffer = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    made.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, placeholder in COLOURS.items():
        if placeholder in text:
            text = text.replace(placeholder, colour(name))
    return text.strip()


_NUMBER = re.compile(r"(\d+\.\d)\d+")
_FONT = re.compile(r"font: (?:(bold|[0-9]+) )?([0-9.]+)px [^;\"]*")


def for_page(svg: str) -> str:
    """An SVG without what a page must have once: ids of groups, a style for all elements, a size, fonts."""
    svg = re.sub(r"<defs>\s*<style[^>]*>[^<]*</style>\s*</defs>\s*", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'^<svg[^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = _FONT.sub(lambda found: f"font-size: {found[2]}px" + ("; font-weight: bold" if found[1] else ""), svg)
    # A tenth of a pixel is enough, and makes a curve a third shorter.
    svg = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', lambda found: _NUMBER.sub(r"\1", found[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)


def css_variable(name: str) -> str:
    """The CSS value of a named colour on a page."""
    return f"var(--{name})"
