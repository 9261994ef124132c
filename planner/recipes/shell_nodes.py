"""The commands of a shell script as values: programs with their words, and blocks that say how they run."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.recipes.shell_words import HereDocument, Part, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=VALUE` before a command or alone."""

    name: str
    word: Word
    """the value"""
    adds: bool
    """whether it is `NAME+=VALUE`"""
    is_element: bool
    """whether it sets one element, `NAME[0]=VALUE`"""


@dataclass(frozen=True, slots=True)
class Simple:
    """One program with its words, without redirections."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    line: int
    stdin: HereDocument | None


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that run together."""

    kind: Literal["all", "own shell", "maybe", "loop", "function"]
    """all: in order, in this shell. own shell: their variables stay in it. maybe: once or not. loop: any number of times"""
    body: tuple["Node", ...]
    name: str = ""
    """the loop's variable, or the function's name"""
    line: int = 0


Node: TypeAlias = Simple | Block


def assignment_of(word: Word) -> Assignment | None:
    """The word as `NAME=VALUE`, None if it is none."""
    found = _ASSIGNMENT.match(word.raw)
    if found is None or not word.parts or word.parts[0].is_quoted or word.parts[0].kind != "text":
        return None
    first = word.parts[0].text
    if not first.startswith(found[0]):
        return None
    rest = first[found.end() :]
    parts = (*((Part("text", rest, False),) if rest else ()), *word.parts[1:])
    value = Word(parts, word.raw[found.end() :], word.line, word.elements)
    return Assignment(found[1], value, adds=bool(found[3]), is_element=found[2] is not None)
