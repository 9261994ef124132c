"""Draws a board of `planner watch` that tmux has captured.

    tmux capture-pane -e -p > board.txt
    python docs/draw_board.py board.txt -o docs/images/watch

This writes `docs/images/watch-light.svg` and `docs/images/watch-dark.svg`. They load nothing from the network.
"""

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# Text and page are GitHub's. The other colours are those of its terminal themes.
_ANSI = {
    "light": [
        (36, 41, 47),
        (207, 34, 46),
        (74, 194, 107),
        (212, 167, 44),
        (9, 105, 218),
        (130, 80, 223),
        (51, 179, 174),
    ],
    "dark": [
        (13, 17, 23),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
    ],
}
_WHITE = (230, 237, 243)
THEMES = {
    "light": TerminalTheme((255, 255, 255), (31, 35, 40), [*_ANSI["light"], _WHITE]),
    "dark": TerminalTheme((13, 17, 23), (230, 237, 243), [*_ANSI["dark"], _WHITE]),
}
_FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def draw(captured: str, theme: TerminalTheme, width: int) -> str:
    """The SVG of a captured pane."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(captured.rstrip("\n")), no_wrap=True, overflow="crop")
    svg = console.export_svg(title="planner watch", theme=theme)
    # rich's fonts come from another server.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", _FONTS)


def main() -> None:
    """Draw both themes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captured", type=Path, help="what `tmux capture-pane -e -p` printed")
    parser.add_argument("-o", required=True, type=Path, metavar="NAME", help="begin of the files' names")
    parser.add_argument("--width", type=int, default=100, help="columns of the pane (default: 100)")
    arguments = parser.parse_args()
    for name, theme in THEMES.items():
        svg = draw(arguments.captured.read_text(encoding="utf-8"), theme, arguments.width)
        arguments.o.with_name(f"{arguments.o.name}-{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
