"""YAML events -> dicts, lists and scalars. Mistakes that do not stop the reading are collected."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from planner.errors import JobError
from planner.files.loader import MAX_VALUES, YamlMistake, events
from planner.files.messages import InvalidValue, KeyPath, Mistake, cut, job_error, show

MAX_DEPTH = 20
# More than any bound of a job needs, and far below the 4300 digits that Python's int() converts.
MAX_DIGITS = 40

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile("[\ud800-\udfff]")

_NO_ALIASES = "Anchors and aliases are not read: write the values out, or quote the text"


@dataclass(kw_only=True)
class Reader:
    """Builds dicts, lists and scalars from YAML events, and collects mistakes that do not stop the reading.

    It always uses PyYAML's Python parser: libyaml accepts other texts (tabs, block headers), and the meaning of a job
    file must not depend on how PyYAML was built. A job of 45 lines takes 2 ms, a full MiB about 5 s.
    """

    source: str
    text: str
    base: KeyPath = ()
    """path of the whole value: empty for a file, the key of an override"""
    mistakes: list[Mistake] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The mapping of the one document. Raises JobError where reading cannot go on."""
        value = self.value()
        if isinstance(value, dict):
            return value
        if self.mistakes:
            raise job_error(self.source, self.mistakes)
        raise self._stop(f"found {show(value)}. Write a mapping of keys and values, such as name: my-run")

    def value(self) -> Any:
        """The value of the one document. Raises JobError where reading cannot go on."""
        self._events = self._parse()
        next(self._events)  # the start of the stream
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            raise self._stop("found nothing in it. Write a job (name, model, data, batch, train)")
        if isinstance(start, DocumentStartEvent) and (start.version or start.tags):
            raise self._stop(f"found a directive (%) on {_line(start)}. Remove it")
        value = self._value(next(self._events), self.base)
        next(self._events)  # the end of the document
        if not isinstance(event := next(self._events), StreamEndEvent):
            raise self._stop(f"found a second document on {_line(event)}. Write one job per file")
        return value

    def _parse(self) -> Iterator[Event]:
        try:
            for number, event in enumerate(events(self.text)):
                if number > MAX_VALUES:
                    raise self._stop(f"found more than {MAX_VALUES} values. Write the path of a job, which has fewer")
                yield event
        except YamlMistake as error:
            raise self._stop(_syntax(error, self.text)) from None

    def _value(self, event: Event, path: KeyPath) -> Any:
        trouble = _trouble(event)
        if trouble:
            self.mistakes.append(Mistake(path=path, text=f"{trouble} (on {_line(event)})"))
        value = self._content(event, path)
        return InvalidValue("a value that is not read") if trouble else value

    def _content(self, event: Event, path: KeyPath) -> Any:
        if len(path) > MAX_DEPTH:
            raise self._stop(f"found more than {MAX_DEPTH} levels on {_line(event)}. Write fewer levels")
        if isinstance(event, ScalarEvent):
            return resolve(event.value, plain=event.implicit[0])
        if isinstance(event, MappingStartEvent):
            return self._mapping(path)
        return self._list(path) if isinstance(event, CollectionStartEvent) else None

    def _list(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, str] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, path)
            if key is None:
                self._skip((*path, "?"))
                continue
            value = self._value(next(self._events), (*path, key))
            if key in values:
                found = f"found twice, on {lines[key]} and {_line(event)}. Write it once"
                self.mistakes.append(Mistake(path=(*path, key), text=found))
            values.setdefault(key, value)
            lines.setdefault(key, _line(event))
        return values

    def _key(self, event: Event, path: KeyPath) -> str | None:
        """The key, or None if it is not text. A mistake is added, and the caller continues without the key."""
        count = len(self.mistakes)
        trouble = _trouble(event)
        value = self._content(event, (*path, "?"))
        if isinstance(event, ScalarEvent) and event.implicit[0] and event.value == "<<":
            trouble = f"found a merge key (<<). {_NO_ALIASES}"
        if not trouble and isinstance(value, str):
            return value
        found = trouble or f"found a key that is {show(value)}. Write a key that is text, quoted if need be"
        # One line for the key is enough: mistakes inside it would have a path that is not in the file.
        self.mistakes[count:] = [Mistake(path=path, text=f"{found} (on {_line(event)})", hides=False)]
        return None

    def _skip(self, path: KeyPath) -> None:
        """Read past the value of a refused key, and drop its mistakes."""
        count = len(self.mistakes)
        self._value(next(self._events), path)
        del self.mistakes[count:]

    def _stop(self, text: str) -> JobError:
        return job_error(self.source, [*self.mistakes, Mistake(path=self.base, text=text)])


def _trouble(event: Event) -> str:
    """Why a node is refused regardless of its value, or empty."""
    anchor = getattr(event, "anchor", None)
    if isinstance(event, AliasEvent):
        return f"found the alias *{cut(anchor or '')}. {_NO_ALIASES}"
    if anchor:
        return f"found the anchor &{cut(anchor)}. {_NO_ALIASES}"
    tag = getattr(event, "tag", None)
    if not tag:
        return ""
    written = re.sub("^tag:yaml.org,2002:", "!!", tag)
    return f"found the tag {cut(written)}. Tags are not read: remove it or put the text in quotes"


def resolve(text: str, *, plain: bool) -> Any:
    """The value of a scalar. `plain`: it has no quotes."""
    if not plain:
        # PyYAML accepts half a surrogate pair in an escape. It fits neither file names nor UTF-8.
        return InvalidValue(f"half a character, {show(text)}") if _SURROGATE.search(text) else text
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if _INTEGER.fullmatch(text):
        digits = len(text.lstrip("+-"))
        return int(text) if digits <= MAX_DIGITS else InvalidValue(f"a whole number of {digits} digits")
    return _decimal(text) if _DECIMAL.fullmatch(text) else text


def _decimal(text: str) -> float | InvalidValue:
    value = float(text)
    if math.isinf(value):
        return InvalidValue(f"{cut(text)} (larger than any number here)")
    if not value and re.search("[1-9]", text.lower().partition("e")[0]):
        return InvalidValue(f"{cut(text)} (too close to zero for a number here)")
    return value


def _line(event: Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "a line"


def _syntax(error: YamlMistake, text: str) -> str:
    if not error.line:
        return "found what is not YAML. Write keys and values, with text in quotes"
    line, column = error.line - 1, error.column - 1
    lines = text.split("\n")
    here = lines[line] if line < len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    if "\t" in indent or here[column : column + 1] == "\t":
        column = here.index("\t")
        return f"line {line + 1}, column {column + 1}: found a tab. Write spaces"
    problem = cut(error.problem).replace("\\t", "a tab")
    return f"line {line + 1}, column {column + 1}: found a YAML mistake ({problem}). Correct it, or quote the text"
