"""A picture on the page, drawn for a narrow and for a wide screen."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Two `<svg>` elements, of which a style sheet shows one. Their colours are CSS variables."""

    narrow: str
    wide: str
