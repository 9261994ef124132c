"""The variables of a shell, and words with their variables filled in, as bash splits them.

What planner cannot know stays visible in the word: `$NAME`, `${NAME}` in capitals, or `$(command)`. `scalars` finds it
there.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from planner.recipes.scalars import has_shell, shell_names
from planner.recipes.shell.arithmetic import compute
from planner.recipes.shell.brackets import ShellError
from planner.recipes.shell.fields import Filled, Operand, has_braces, leave
from planner.recipes.shell.nodes import Assignment, Node
from planner.recipes.shell.words import Lexer, Part, Word, merged

Value: TypeAlias = str | tuple[str, ...] | None
"""a text, an array, or None for a variable that may have several values"""

_PARAMETER = re.compile(
    r"(#(?=[^}]))?([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*)|([:%#/^,@!].*|(?<=!)[A-Za-z_].*))?",
    re.ASCII | re.DOTALL,
)
_LONGEST_VALUE = 10_000
# `$(expr 16 / $gpus)`, which computes as `$((16 / $gpus))` does.
_EXPR = re.compile(r"\s*expr((?:\s+[\w$\"{}]+\s+[-+/%])+\s+[\w$\"{}]+)\s*", re.ASCII)
_MOST_FILLED = 3_000_000
_MOST_NESTED = 20


@dataclass(kw_only=True)
class Shell:
    """The state of one shell while its script is read."""

    given: Mapping[str, str] = field(default_factory=dict)
    """values from outside. They win over those that the script sets"""
    layers: list[dict[str, Value]] = field(default_factory=lambda: [{}])
    """values that the script sets, the innermost last"""
    exported: set[str] = field(default_factory=set)
    exports_all: bool = False
    functions: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    positional: tuple[str, ...] | None = None
    """the arguments of the script or of a function, None if unknown"""
    num_shifted: int | None = 0
    """how many of the script's given arguments `shift` has removed, None if unknown or if they are not its arguments"""
    never_known: set[str] = field(default_factory=set)
    """variables whose values are not followed"""
    splits: bool = True
    """whether IFS is bash's default"""
    filled: list[int] = field(default_factory=lambda: [0])
    """the number of characters filled in so far, shared by all shells of one script"""

    def is_set(self, name: str) -> bool:
        """Whether the script sets the variable or a value is given, also one that is unknown."""
        return name in self.given or name in self.never_known or any(name in layer for layer in self.layers)

    def value(self, name: str) -> Value:
        """The variable's value, None if it is unknown or not set."""
        if name in self.given:
            return self.given[name]
        if name in self.never_known:
            return None
        return next((layer[name] for layer in reversed(self.layers) if name in layer), None)

    def set(self, name: str, value: Value) -> None:
        """Set a variable."""
        if name == "IFS":
            self.splits = False
        if self.exports_all:
            self.exported.add(name)
        self.layers[-1][name] = value

    def assign(self, its: Assignment) -> None:
        """Set a variable to the value of an assignment."""
        self.set(its.name, self.assigned(its))

    def assigned(self, its: Assignment) -> Value:
        """The value that an assignment gives to its variable."""
        if its.is_element:
            return None
        if its.word.elements is not None:
            return self._array(its)
        filled = self.fill(its.word, splits=False)
        if not filled.is_known:
            return None
        value = " ".join(filled.words)
        if its.adds and self.is_set(its.name):
            old = self.value(its.name)
            if not isinstance(old, str):
                return None
            value = old + value
        return value if len(value) <= _LONGEST_VALUE else None

    def _array(self, its: Assignment) -> Value:
        if any(word.raw.startswith("[") or has_braces(word) for word in its.word.elements or ()):
            return None
        filled = [self.fill(word) for word in its.word.elements or ()]
        values = tuple(text for each in filled for text in each.words)
        if its.adds and self.is_set(its.name):
            old = self.value(its.name)
            if not isinstance(old, tuple):
                return None
            values = old + values
        is_known = not any(has_shell(text) for text in values) and sum(map(len, values)) <= _LONGEST_VALUE
        return values if is_known else None

    def environment(self) -> dict[str, str]:
        """The exported variables. One that may have several values is its own name, `$NAME`."""
        made = {}
        for name in sorted(self.exported):
            if self.is_set(name):
                value = self.value(name)
                made[name] = f"${name}" if value is None else value if isinstance(value, str) else " ".join(value[:1])
        return made

    def fill(self, word: Word, *, splits: bool = True) -> Filled:
        """The words that a word becomes. With `splits` its unquoted variables are split at blanks.

        Raises:
            ShellError: bash refuses it, or it becomes far too long.
        """
        made = Filled()
        self._pour(word.parts, made, splits=splits)
        made.end()
        return made

    def _pour(
        self, parts: Sequence[Part], made: Filled, *, splits: bool, depth: int = 0, text_splits: bool = False
    ) -> None:
        """Adds pieces to `made`. With `text_splits` also unquoted text is split, as behind `:-`."""
        if depth > _MOST_NESTED:
            raise ShellError(f"found variables nested more than {_MOST_NESTED} deep")
        for at, part in enumerate(parts):
            value: Value | Operand = None
            if part.kind == "text":
                (made.split if text_splits and not part.is_quoted else made.add)(part.text)
                continue
            if part.kind == "variable":
                value = self._parameter(part)
            elif part.kind == "arithmetic":
                value = self._computed(part.text, depth)
            elif part.kind == "command" and (sum_of := _EXPR.fullmatch(part.text)):
                value = self._computed(sum_of[1], depth)
            is_split = splits and not part.is_quoted
            if value is None or (is_split and not self.splits):
                leave(part, parts[at + 1 :][:1], made)
            elif isinstance(value, Operand):
                if part.is_quoted:
                    made.add("")  # a word, also if nothing is in it
                self._pour(value.parts, made, splits=splits, depth=depth + 1, text_splits=is_split)
            else:
                self._add(value, made, is_split=is_split, splits=splits)

    def _add(self, value: str | tuple[str, ...], made: Filled, *, is_split: bool, splits: bool) -> None:
        """Adds a known value."""
        for at, text in enumerate(value if isinstance(value, tuple) else (value,)):
            if at and splits:
                made.end()
            elif at:
                made.add(" ")
            self.filled[0] += len(text)
            (made.split if is_split else made.add)(text)
            made.unknown.update(shell_names(text) if "$" in text else ())
        if self.filled[0] > _MOST_FILLED:
            raise ShellError("its variables make it far too long")

    def _parameter(self, part: Part) -> "Value | Operand":
        """What `${...}` becomes: a text, several texts, the text behind its `:-`, or None if it is unknown."""
        found = _PARAMETER.fullmatch(part.text)
        if found is None:
            text = f"found ${{{part.text[:40]}}}, which a shell refuses"
            raise ShellError(text, "Write single quotes around a ${} that Hydra is to fill in")
        length, name, index, sign, operand, other = found.groups()
        is_set, value = self._looked_up(name, index, is_quoted=part.is_quoted)
        if other or (length and sign) or (is_set and value is None):
            return None
        if length or (sign or "").endswith("+"):
            # Open text may be empty, and a variable that the script does not set may be set outside.
            if not is_set or not isinstance(value, str) or has_shell(value):
                return None
            if length:
                return str(len(value))
            return Operand.of(operand, part) if value or sign == "+" else ""
        if not sign or sign[-1] == "?" or (is_set and (value not in {"", ()} or sign[0] != ":")):
            return value
        if sign[-1] == "=":
            self.set(name, None)
            self.never_known.add(name)
        return Operand.of(operand, part)

    def _looked_up(self, name: str, index: str | None, *, is_quoted: bool) -> tuple[bool, Value]:
        """Whether a parameter is set, and its value."""
        if self.positional is not None and not name[0].isalpha() and name[0] != "_" and name != "0":
            value = self._argument(name, self.positional, is_quoted=is_quoted)
            return value is not None, value
        if name in {"@", "*"}:
            value = self._given_arguments()
            return value is not None, " ".join(value) if value and name == "*" and is_quoted else value
        if name.isdecimal() and name != "0":
            return self._given_argument(int(name[:6]))
        if not self.is_set(name):
            return False, None
        value = self.value(name)
        if isinstance(value, tuple):
            return True, _element(value, index, is_quoted=is_quoted)
        return True, value if index in {None, "0", "@", "*"} else None

    def _given_argument(self, at: int) -> tuple[bool, Value]:
        """Whether `$1` and so on is given from outside, and its value, behind any `shift`."""
        if self.num_shifted is None:
            return any(name.isdecimal() for name in self.given), None
        value = self.given.get(str(at + self.num_shifted))
        return value is not None, value

    def _given_arguments(self) -> tuple[str, ...] | None:
        """What `$@` is if `$1` and so on are given from outside. None if they are not."""
        if self.num_shifted is None:
            return None
        numbers = itertools.count(self.num_shifted + 1)
        found = tuple(itertools.takewhile(lambda text: text is not None, (self.given.get(str(at)) for at in numbers)))
        return tuple(text for text in found if text is not None) or None

    @staticmethod
    def _argument(name: str, positional: tuple[str, ...], *, is_quoted: bool) -> Value:
        """`$1`, `$#`, `$@` or `$*`, None for any other sign."""
        if name.isdecimal():
            return "".join(positional[int(name[:6]) - 1 : int(name[:6])])
        if name == "*" and is_quoted:
            return " ".join(positional)
        return positional if name in {"@", "*"} else str(len(positional)) if name == "#" else None

    def _computed(self, text: str, depth: int) -> str | None:
        """The value of `$((...))`, None if planner cannot compute it."""
        parts: list[Part] = []
        Lexer(text).quoted(parts, "")
        filled = Filled()
        self._pour(merged(parts), filled, splits=False, depth=depth + 1)
        filled.end()
        if filled.unknown or not filled.is_known:
            return None
        number = compute(" ".join(filled.words), self._text)
        return None if number is None else str(number)

    def _text(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None


def _element(values: tuple[str, ...], index: str | None, *, is_quoted: bool) -> Value:
    """`${NAME[index]}` of an array, None if the index is not a plain number."""
    if index == "@" or (index == "*" and not is_quoted):
        return values
    if index == "*":
        return " ".join(values)
    at = int(index or "0") if (index or "0").isdecimal() and len(index or "0") < 6 else None
    return None if at is None else "".join(values[at : at + 1])
