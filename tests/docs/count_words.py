"""Count what makes prose hard to read.

python tests/docs/count_words.py        prints each page's semicolons per 1,000 words, README's lines, and pronouns
"""

import re
from pathlib import Path

from pages import PAGES, ROOT, name, prose

MOST_SEMICOLONS = 2.5
"""per 1,000 words, over all pages together"""
MOST_LINES = 150
"""of README.md"""
SEARCHED = ("README.md", "docs", "planner", "tests", "bench", "jobs")
"""where people are they, and workers, drivers and processes are it"""
SUFFIXES = {".md", ".py", ".yaml", ".sh", ".jinja", ".csv"}
PRONOUNS = re.compile(r"\bh(?:e|is|im|imself)\b", re.IGNORECASE)


def words_and_semicolons(page: Path) -> tuple[int, int]:
    """Count a page's prose. A word has a letter or a digit."""
    text = prose(page)
    return sum(any(char.isalnum() for char in word) for word in text.split()), text.count(";")


def per_1000(words: int, semicolons: int) -> float:
    """Semicolons per 1,000 words."""
    return 1000 * semicolons / max(words, 1)


def pronouns() -> list[str]:
    """`file:line: text` of each line with a man's pronoun, for a person or a thing."""
    files = [file for each in SEARCHED for file in [ROOT / each, *(ROOT / each).rglob("*")]]
    return [
        f"{name(file)}:{number}: {line.strip()}"
        for file in sorted(files)
        if file.suffix in SUFFIXES and file.is_file()
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if PRONOUNS.search(line)
    ]


def readme_lines() -> int:
    """Lines of README.md."""
    return len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Print the counts."""
    counts = {name(page): words_and_semicolons(page) for page in PAGES}
    words, semicolons = (sum(column) for column in zip(*counts.values(), strict=True))
    counts[f"all (at most {MOST_SEMICOLONS})"] = words, semicolons
    for what, (words, semicolons) in counts.items():
        print(f"{per_1000(words, semicolons):6.1f}  {words:6} words  {semicolons:4} semicolons  {what}")
    print(f"README.md has {readme_lines()} lines (at most {MOST_LINES})")
    print("\n".join(pronouns()) or "no pronouns of a man")


if __name__ == "__main__":
    main()
