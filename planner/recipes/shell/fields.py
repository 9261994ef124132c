"""The words that one word of a script becomes, while its variables are filled in, and the pieces that stay open."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.recipes.scalars import shell_names
from planner.recipes.shell.brackets import ShellError
from planner.recipes.shell.words import Lexer, Part, Word, merged

_SPACES = re.compile(r"[ \t\n]+")
_BRACED = re.compile(r"[A-Z_][A-Z0-9_]*|[0-9]+")
_GOES_ON = re.compile(r"\w", re.ASCII)


@dataclass(kw_only=True)
class Filled:
    """The words that one word of a script becomes."""

    words: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """names of variables whose values planner does not know"""
    is_known: bool = True
    """False if it contains a command, a script's argument or an expression that planner does not know"""
    _current: list[str] | None = None

    def add(self, text: str) -> None:
        """Add text to the word that is being made."""
        if self._current is None:
            self._current = []
        self._current.append(text)

    def split(self, text: str) -> None:
        """Add text that blanks split."""
        for at, piece in enumerate(_SPACES.split(text)):
            if at:
                self.end()
            if piece:
                self.add(piece)

    def end(self) -> None:
        """End the word that is being made."""
        if self._current is not None:
            self.words.append("".join(self._current))
            self._current = None


@dataclass(frozen=True)
class Operand:
    """The text behind `:-` in `${NAME:-text}`, which may contain variables."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, text: str, part: Part) -> "Operand":
        """The operand of a part.

        Raises:
            ShellError: it has quotes in quotes.
        """
        lexer, parts = Lexer(text), list[Part]()
        if not part.is_quoted:
            lexer.all_of(parts)
        elif '"' in text:
            raise ShellError(f"found ${{{part.text[:40]}}} with quotes in quotes, which planner does not read")
        else:
            lexer.quoted(parts, "")
        return cls(merged(parts))


def has_braces(word: Word) -> bool:
    """Whether bash may make several words of it: `{a,b}` or `{1..3}` without quotes."""
    text = "".join(part.text if part.kind == "text" and not part.is_quoted else "\0" for part in word.parts)
    inner = text[text.find("{") + 1 : text.rfind("}")] if "{" in text else ""
    return "," in inner or ".." in inner


def leave(part: Part, after: Sequence[Part], made: Filled) -> None:
    """Add a piece that planner does not know, as it is written."""
    text = _unknown(part, after)
    made.add(text)
    names = shell_names(text) if part.kind == "variable" else []
    made.unknown.update(names)
    made.is_known &= bool(names) and not any(name.isdecimal() for name in names)


def _unknown(part: Part, after: Sequence[Part]) -> str:
    """How a piece that planner does not know stays in its word. `${name}` would be Hydra's, so it becomes `$name`."""
    if part.kind == "command":
        return f"$({part.text})"
    if part.kind == "arithmetic":
        return f"$(({part.text}))"
    if not re.fullmatch(r"\w+", part.text, re.ASCII):
        return f"${{{part.text}}}" if len(part.text) > 1 else f"${part.text}"
    ends = not after or (after[0].kind == "text" and not _GOES_ON.match(after[0].text))
    if ends:
        return f"${part.text}"
    return f"${{{part.text}}}" if _BRACED.fullmatch(part.text) else f"${{{part.text}:-}}"
