"""Small pieces of HTML from text. They escape their text, so what is not of type `Html` cannot reach the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from planner.errors import printable


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture: two `<svg>` elements, of which a style sheet shows one. Their colours are CSS variables."""

    narrow: str
    wide: str


def text(value: object) -> Html:
    """A value as HTML. Control characters are shown as escapes."""
    return value if isinstance(value, Html) else Html(escape(printable(str(value))))


def joined(parts: Iterable[object], between: str = "\n") -> Html:
    """Parts one after the other."""
    return Html(between.join(text(part) for part in parts))


def element(name: str, *parts: object, **attributes: str) -> Html:
    """An element with its content. `class_` gives the attribute `class`, `aria_label` gives `aria-label`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{joined(parts, '')}</{name}>")


def paragraph(*parts: object) -> Html:
    """A paragraph of sentences."""
    return element("p", joined((part for part in parts if part), " "))


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names with their values. Empty values are left out."""
    rows = [joined([element("dt", name), element("dd", value)], "") for name, value in pairs if value not in {"", None}]
    return element("dl", *rows, class_="facts") if rows else Html()


def tiles(values: Iterable[tuple[str, str, str]]) -> Html:
    """Large figures: `(name, value, small print)`."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", small) if small else ""))
            for name, value, small in values
        ),
        class_="tiles",
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, name: str, left: Iterable[int] = (0,)) -> Html:
    """A table that scrolls within itself if it is too wide.

    Args:
        header: the columns' names.
        rows: the cells.
        name: what the table shows, for screen readers.
        left: indices of the columns that are aligned to the left.
    """
    columns = set(left)

    def cells(kind: str, row: Sequence[object]) -> list[Html]:
        scope = {"scope": "col"} if kind == "th" else {}
        return [
            element(kind, cell, **scope) if at in columns else element(kind, cell, class_="number", **scope)
            for at, cell in enumerate(row)
        ]

    head = element("thead", element("tr", *cells("th", header)))
    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    return element("div", element("table", head, body), class_="scroll", role="region", tabindex="0", aria_label=name)


def folded(summary: str, *parts: object) -> Html:
    """Something that opens when the reader asks for it."""
    return element("details", element("summary", summary), *parts)


def picture(drawing: Drawing, description: str, caption: str = "", data: Html | None = None) -> Html:
    """A figure with its text alternative, its caption and its data as a table.

    Args:
        drawing: the picture.
        description: what it shows, in sentences with the figures.
        caption: what to know to read it.
        data: a table of its values.
    """
    label = escape(printable(description), quote=True)
    drawn = [
        Html(svg.replace("<svg ", f'<svg class="{kind}" role="img" aria-label="{label}" ', 1))
        for kind, svg in (("narrow", drawing.narrow), ("wide", drawing.wide))
    ]
    words = element("figcaption", caption) if caption else ""
    return joined([element("figure", *drawn, words), *([folded("The figures as a table", data)] if data else [])])
