"""Finds the end of `$(...)`, `${...}` and `(...)` in a shell script, past quotes, comments and inner brackets."""

import re
from typing import Literal

_SKIPPED = re.compile(r"[^\\'\"$`(){}#<]+")
_IN_BACKTICKS = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL)
_BEGINS_COMMENT = " \t\n;|&("


class ShellError(Exception):
    """A text that bash refuses, or that planner cannot read with certainty. The message says what was found.

    `fix` says what to write, as a sentence without a full stop. Empty if nothing in particular.
    """

    def __init__(self, found: str, fix: str = "") -> None:
        super().__init__(f"{found}. {fix}" if fix else found)
        self.fix = fix


def close(text: str, at: int, inside: Literal["(", "brace", "quoted brace"]) -> int:
    """The place behind the bracket that ends what `inside` began before `at`. It keeps a stack, so it does not recurse.

    Raises:
        ShellError: there is none, or the text has what only a whole parser can tell from a bracket.
    """
    first, stack = at, [str(inside)]
    while stack:
        if found := _SKIPPED.match(text, at):
            at = found.end()
        if at >= len(text):
            raise ShellError(f"line {text.count(chr(10), 0, first) + 1}: a bracket has no end")
        at = _step(text, at, stack)
    if inside == "(" and re.search(r"\bcase\b[^\n]*\bin\b|(?<!<)<<(?![<=])[^\n]*\n", text[first:at]):
        raise ShellError("found case or << inside brackets, which planner does not read")
    return at


def _step(text: str, at: int, stack: list[str]) -> int:
    """The place behind the sign at `at`, which may begin or end something."""
    sign, top, behind = text[at], stack[-1], at + 1
    is_double = top == "double"
    if sign == "\\":
        behind = at + 2
    elif sign == "'" and top in {"(", "brace"}:
        behind = _behind(text, "'", at + 1)
    elif sign == '"':
        stack.pop() if is_double else stack.append("double")
    elif sign == "`":
        found = _IN_BACKTICKS.match(text, at + 1)
        behind = found.end() if found else len(text)
    elif text.startswith("${", at):
        stack.append("quoted brace" if is_double or top == "quoted brace" else "brace")
        behind = at + 2
    elif text.startswith("$(", at) or (sign == "(" and top == "("):
        stack.append("(")
        behind = at + (2 if sign == "$" else 1)
    elif (sign == ")" and top == "(") or (sign == "}" and top.endswith("brace")):
        stack.pop()
    elif sign == "#" and top == "(" and text[at - 1] in _BEGINS_COMMENT:
        behind = _behind(text, "\n", at)
    return behind


def _behind(text: str, sign: str, at: int) -> int:
    end = text.find(sign, at)
    return len(text) if end < 0 else end + 1
