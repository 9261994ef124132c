"""The pages that a person reads, taken apart: prose, and blocks of code."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A fenced block. Lines with four spaces after an empty line are a block, too.
FENCED = re.compile(r"(?ms)^( *)```([\w-]*)[^\n]*\n(.*?)^\1```[^\n]*$")
INDENTED = re.compile(r"(?m)(?<=\n\n)((?:    [^\n]*\n)+)(?=\n|\Z)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code in a page."""

    page: Path
    line: int
    """number of its first line, from 1"""
    language: str
    """as the fence says it, or empty"""
    text: str
    above: str
    """the paragraph or the comment above it"""

    @property
    def place(self) -> str:
        """`docs/guides/audit.md:12`."""
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """The path from the repository's root."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    outside = FENCED.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), text)  # places stay the same
    fenced = [(found.start(), found[2], re.sub(rf"(?m)^{found[1]}", "", found[3])) for found in FENCED.finditer(text)]
    indented = [(found.start(), "", re.sub(r"(?m)^    ", "", found[1])) for found in INDENTED.finditer(outside)]
    return [
        Block(
            page=page,
            line=text.count("\n", 0, start) + 1,
            language=language,
            text=code,
            above=text[:start].rstrip().rpartition("\n\n")[2],
        )
        for start, language, code in sorted(fenced + indented)
    ]


def without_blocks(page: Path) -> str:
    """The page without its blocks."""
    return INDENTED.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))


def prose(page: Path) -> str:
    """The page without blocks, comments, code in backquotes and the targets of links."""
    text = re.sub(r"(?s)<!--.*?-->", "", without_blocks(page))
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "", text))
