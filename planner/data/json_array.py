"""Reads a JSON array one value at a time. A parsed array would take twenty times the bytes of its file."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from planner.data.paths import MAX_LINE_BYTES

_CHUNK_BYTES = 2**16
_DECODER = json.JSONDecoder()
_FIRST, _NEXT = (re.compile(rf"[ \t\n\r]*{sign}[ \t\n\r]*") for sign in (r"\[", ","))
_AFTER_A_VALUE = frozenset(",] \t\n\r")


def array_values(stream: BinaryIO) -> Iterator[Any]:
    """The values of the array.

    Raises:
        ValueError: the stream is not a JSON array, or has a value of more than `MAX_LINE_BYTES` characters.
        RecursionError: a value is nested too deeply.
    """
    # `json.loads` decodes bytes in this way.
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass")
    text, number = "", 0
    # Twice as much each time, so that a long value takes linear time.
    while content := stream.read(_CHUNK_BYTES + len(text)):
        text += decoder.decode(content)
        at = 0
        while found := _value(text, at, _NEXT if number else _FIRST):
            value, at = found
            yield value
            number += 1
        text = text[at:]
        if len(text) > MAX_LINE_BYTES:
            raise ValueError(_flaw(text, number) or f"more than {MAX_LINE_BYTES} blanks after its end")
    if flaw := _flaw(text + decoder.decode(b"", final=True), number):
        raise ValueError(flaw)


def _value(text: str, at: int, before: re.Pattern[str]) -> tuple[Any, int] | None:
    """The next value and the place of its end, None if it is not complete or there is none.

    A number may continue, such as the 0 of 0.5, so a value is complete when something is after it.
    """
    if not (start := before.match(text, at)):
        return None
    try:
        value, end = _DECODER.raw_decode(text, start.end())
    except json.JSONDecodeError:
        return None
    return (value, end) if text[end : end + 1] in _AFTER_A_VALUE else None


def _flaw(text: str, number: int) -> str:
    """What is wrong with the array from the row `number` on, empty if it ends there. A 0 stands for the rows before."""
    try:
        is_array = isinstance(json.loads(f"[0{text}" if number else text), list)
    except json.JSONDecodeError as error:
        return f"row {number}: {error.msg}"
    return "" if is_array else "not an array"
