"""The text of Stack Exchange's HTML, as the DPO repository takes it."""

from typing import Any

from planner.base.text import how_to_install
from planner.errors import DataError


def html_text(html: str) -> str:
    """Paragraphs and code, with an empty line between them. Code keeps its tag.

    Of a paragraph only its own text counts, without links, emphasis and code inside of it.

    Raises:
        DataError: BeautifulSoup is not installed.
    """
    try:
        from bs4 import BeautifulSoup
    except ImportError as error:
        raise DataError.of(
            "data.loader", f"dpo/se reads HTML, but beautifulsoup4 is not installed: {how_to_install('hf')}"
        ) from error
    parts: list[str] = []
    for element in BeautifulSoup(html, "html.parser").find_all(recursive=False):
        if element.name == "p":
            parts.append("".join(_own_texts(element)))
        elif element.name == "code":
            parts.append(_as_code(element))
        elif element.name == "pre":
            parts += [_as_code(code) for code in element.find_all("code")]
    return "\n\n".join(parts)


def _own_texts(element: Any) -> list[str]:
    from bs4.element import NavigableString

    return [str(child) for child in element.children if isinstance(child, NavigableString)]


def _as_code(element: Any) -> str:
    return f"<code>{element.get_text()}</code>"
