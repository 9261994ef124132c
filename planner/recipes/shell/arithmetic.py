"""Computes `$((...))`: whole numbers, variables, + - * / % and brackets. Anything else has no value here."""

import re
from collections.abc import Callable
from itertools import pairwise

_TOKEN = re.compile(r"\s*(?:(0|[1-9][0-9]{0,18})(?![\w.#])|([A-Za-z_]\w*)|([-+*/%()]))", re.ASCII)
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})")
_LIMIT = 2**63
_MOST_TOKENS = 200


def whole(text: str) -> int | None:
    """The decimal number in a text. None for any other text, also for octal numbers such as `010`."""
    return int(text) if _WHOLE.fullmatch(text.strip(" \t\n")) else None


def compute(text: str, value: Callable[[str], str | None]) -> int | None:
    """The value of an expression in bash. None if planner cannot compute it.

    Args:
        text: the expression, with `$NAME` filled in.
        value: the text of a variable, None if it is unknown.
    """
    tokens: list[int | str] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) >= _MOST_TOKENS:
            return None
        if found[2]:
            text_of = value(found[2])
            number = None if text_of is None else whole(text_of)
            if number is None:
                return None
            tokens.append(number)
        else:
            tokens.append(int(found[1]) if found[1] else found[3])
        at = found.end()
    if any(first == second and first in {"+", "-"} for first, second in pairwise(tokens)):
        return None  # `++` and `--` change variables
    try:
        result = _Reader(tokens).all()
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return result


class _Reader:
    """Recursive descent over at most 200 tokens."""

    def __init__(self, tokens: list[int | str]) -> None:
        self.tokens = [*tokens, ""]
        self.at = 0

    def all(self) -> int:
        result = self.sum()
        if self.tokens[self.at] != "":
            raise ValueError
        return result

    def _take(self) -> int | str:
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> int:
        result = self.product()
        while self.tokens[self.at] in {"+", "-"}:
            sign = self._take()
            other = self.product()
            result = _checked(result + other if sign == "+" else result - other)
        return result

    def product(self) -> int:
        result = self.signed()
        while self.tokens[self.at] in {"*", "/", "%"}:
            sign, other = self._take(), self.signed()
            if sign == "*":
                result = _checked(result * other)
                continue
            # bash rounds towards 0.
            quotient = abs(result) // abs(other) * (1 if (result < 0) == (other < 0) else -1)
            result = quotient if sign == "/" else result - quotient * other
        return result

    def signed(self) -> int:
        first = self._take()
        if first in {"+", "-"}:
            value = self.signed()
            return -value if first == "-" else value
        if first == "(":
            value = self.sum()
            if self._take() != ")":
                raise ValueError
            return value
        if isinstance(first, int):
            return _checked(first)
        raise ValueError


def _checked(value: int) -> int:
    """The value. A larger one would wrap around in bash."""
    if not -_LIMIT < value < _LIMIT:
        raise ValueError
    return value
