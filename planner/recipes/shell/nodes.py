"""The commands of a shell script as values: programs with their words, and blocks that say how they run."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.recipes.shell.brackets import ShellError
from planner.recipes.shell.words import HereDocument, Part, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Far above any real script.
MOST_NESTED = 40
"""levels of commands in commands"""


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
    """all: in order, in this shell. own shell: their variables stay in it. maybe: once or not. loop: any number of
    times"""
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


def chained(parts: list[tuple[str, list[Node]]]) -> list[Node]:
    """`a && b || c`: `a` runs always. Up to the first `||`, each command runs only where the one before it has run."""
    first = next((at for at, (operator, _) in enumerate(parts) if operator == "||"), len(parts))
    if first > MOST_NESTED:
        raise ShellError(f"found more than {MOST_NESTED} commands in a chain of &&")
    made: list[Node] = []
    for _, nodes in reversed(parts[:first]):
        rest: list[Node] = made if not made or _is_certain(nodes) else [Block("maybe", tuple(made))]
        made = [*nodes, *rest]
    return [*made, *(Block("maybe", tuple(nodes)) for _, nodes in parts[first:])]


def _is_certain(nodes: list[Node]) -> bool:
    """Whether a command never fails: an assignment without a command in it."""
    return all(
        isinstance(node, Simple)
        and not node.words
        and node.assignments
        and all(part.kind in {"text", "variable"} for its in node.assignments for part in its.word.parts)
        for node in nodes
    )


def arithmetic(text: str, line: int) -> Simple:
    """`((...))` as a command that may set each variable in it."""
    names = dict.fromkeys(_NAME.findall(text))
    unknown = Word((Part("command", "", False),), "", line)
    return Simple(tuple(Assignment(name, unknown, adds=False, is_element=False) for name in names), (), line, None)
