"""Reads a JSON array one value at a time. A parsed array would take twenty times the bytes of its file."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from planner.data.paths import MAX_LINE_BYTES

_CHUNK_BYTES = 2**16
_DECODER = json.JSONDecoder()
_AFTER_A_VALUE = frozenset(",] \t\n\r")
_BLANKS = re.compile(r"[ \t\n\r]*")


def array_values(stream: BinaryIO) -> Iterator[tuple[Any, int]]:
    """The values of the array, each with the number of bytes that were read until it was complete.

    Raises:
        ValueError: the stream is not a JSON array, or has a value of more than `MAX_LINE_BYTES` characters.
        RecursionError: a value is nested too deeply.
    """
    text = _Text(stream)
    text.take("[")
    is_first = True
    while text.peek() != "]":
        if not is_first:
            text.take(",")
        yield text.value(), text.num_bytes
        is_first = False
    text.take("]")
    if text.peek():
        raise ValueError("there is more after its ]")


class _Text:
    """The part of the stream that is read but not yet parsed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # `json.loads` decodes bytes in this way.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass")
        self._text, self._at = "", 0
        self.num_bytes = 0

    def peek(self) -> str:
        """The next non-blank character, empty at the end."""
        while True:
            found = _BLANKS.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, sign: str) -> None:
        """Skip the next non-blank character, which must be `sign`."""
        if self.peek() != sign:
            raise ValueError(f"a {sign} is missing, some characters before byte {self.num_bytes}")
        self._at += 1

    def value(self) -> Any:
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > MAX_LINE_BYTES or not self._more():
                    raise ValueError(f"{error.msg}, some characters before byte {self.num_bytes}") from error
                continue
            # A number may continue in the next chunk, such as the 0 of 0.5.
            if self._text[end : end + 1] not in _AFTER_A_VALUE and self._more():
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        """Read more, twice as much each time, so that a long value takes linear time."""
        content = self._stream.read(_CHUNK_BYTES + len(self._text) - self._at)
        self.num_bytes += len(content)
        decoded = self._decoder.decode(content, final=not content)
        if content:
            self._text, self._at = self._text[self._at :] + decoded, 0
        return bool(content)
