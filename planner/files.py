"""Our YAML <-> the Job value; an error names the key's path, what was found and what to write.

This module reads less than YAML: one document of plain mappings, lists and scalars. Anchors, aliases, merge
keys, tags and directives are refused, so that a file is what it looks like. Scalars follow the YAML 1.2 core
schema without its octal and hexadecimal numbers: `1e-3` is a number, while `no`, `010`, `1_000`, `1:30` and
dates are text. It knows no field of a job: bounds and names come from the model's own JSON Schema.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
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
from planner.job import Job

MAX_BYTES = 2**20
MAX_DEPTH = 20
MAX_MISTAKES = 20
# More than any bound of a job needs; far below the 4300 digits at which Python's int() gives up.
MAX_DIGITS = 40
MAX_SHOWN = 60

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# What YAML 1.2 does not allow in a file; and what PyYAML takes for a line break (next line, the separators)
# or drops (a byte order mark after the start) where YAML 1.2 sees a character.
_FORBIDDEN = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")

_NO_ALIASES = "anchors and aliases are not read; write the values out, or quote the text"

_Path = tuple[str | int, ...]
_Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    """One line of an error; `path` is where, or empty for the file itself.

    With `hides`, nothing else is said of the value at `path`: what the model thinks of it is noise.
    """

    path: _Path = ()
    text: str
    hides: bool = True


@dataclass(frozen=True)
class _Unusable:
    """Stands for a value that no field takes, so that the model's refusal can say what was found."""

    found: str


def read_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job in a YAML file of UTF-8 text, at most 1 MiB.

    An override is `key.path=value`, laid over the file in the order given before all is checked; missing
    sections are made. A value that starts with a quote, `[` or `{` is read as YAML; any other is one plain
    scalar, so `data.path=*.txt` needs no quotes.

    Raises:
        JobError: the file cannot be read, or is wrong; the message has one line per mistake.
    """
    source = _escape(str(path))
    return parse_job(_decode(_read_bytes(path, source), source), source=source, overrides=overrides)


def parse_job(text: str, *, source: str = "job", overrides: Sequence[str] = ()) -> Job:
    """The job in a YAML text; `source` opens each line of an error. Overrides are as in `read_job`.

    Raises:
        JobError: the text or an override is wrong; the message has one line per mistake.
    """
    source = _escape(source)
    reader = _Reader(source=source, text=_readable(text, source))
    mapping = reader.document()
    for override in overrides:
        _lay_over(mapping, override, reader)
    try:
        job = Job.model_validate(mapping)
    except ValidationError as error:
        told = frozenset(mistake.path for mistake in reader.mistakes if mistake.hides)
        raise _error(source, reader.mistakes + _translate(error, told)) from None
    if reader.mistakes:
        raise _error(source, reader.mistakes)
    return job


def dump_job(job: Job) -> str:
    """The job as YAML, every default written out; `parse_job` reads an equal job from it."""
    values = job.model_dump(by_alias=True)
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


# --- the file ---------------------------------------------------------------------------------------------


def _read_bytes(path: str | Path, source: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _error(source, [_Mistake(text=_why_unread(error))]) from None
    except ValueError:  # a NUL, or what the file system cannot encode
        raise _error(source, [_Mistake(text="found no such file name; write the path of a file")]) from None
    if len(data) > MAX_BYTES:
        text = f"found more than {MAX_BYTES} bytes; a job file has at most 1 MiB, write the path of one"
        raise _error(source, [_Mistake(text=text)])
    return data


def _why_unread(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "found no such file; write the path of a job file"
    if isinstance(error, IsADirectoryError):
        return "found a directory; write the path of a job file in it"
    if isinstance(error, PermissionError):
        return "found a file that may not be read; give yourself permission to read it"
    return f"found a file that cannot be read ({_escape(error.strerror or str(error))}); write another path"


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        found = f"found byte 0x{data[error.start]:02x} at byte offset {error.start}, which is not UTF-8"
        raise _error(source, [_Mistake(text=f"{found}; save the file as UTF-8 text")]) from None
    if (offset := data.find(b"\0")) >= 0:
        found = f"found a NUL byte at byte offset {offset}, so this is a binary file"
        raise _error(source, [_Mistake(text=f"{found}; write the path of a text file")])
    return text


def _readable(text: str, source: str, base: _Path = ()) -> str:
    """The text with LF line ends and no byte order mark; refused if it holds what YAML does not allow."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if bad := _FORBIDDEN.search(text):
        line, column = text.count("\n", 0, bad.start()) + 1, bad.start() - text.rfind("\n", 0, bad.start())
        found = f"line {line}, column {column}: found the control character {_escape(bad[0])}"
        fix = 'remove it, or write it as an escape in "quotes"'
        raise _error(source, [_Mistake(path=base, text=f"{found}; {fix}")])
    return text


# --- YAML events -> plain values --------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Reader:
    """Builds dicts, lists and scalars from YAML events; collects the mistakes that it can read past.

    Always PyYAML's own parser: libyaml accepts other texts (tabs, block headers), and what a job file means
    must not depend on how PyYAML was built. On a job of 45 lines it costs 2 ms, on a full MiB some 5 s.

    `base` is the path of the whole value: empty for a file, the key of an override.
    """

    source: str
    text: str
    base: _Path = ()
    mistakes: list[_Mistake] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The mapping of the one document. Raises JobError where reading cannot go on."""
        value = self.value()
        if isinstance(value, dict):
            return value
        if self.mistakes:
            raise _error(self.source, self.mistakes)
        raise self._stop(f"found {_show(value)}; write a mapping of keys and values, such as name: my-run")

    def value(self) -> Any:
        """The value of the one document. Raises JobError where reading cannot go on."""
        self._events = self._parse()
        next(self._events)  # the start of the stream
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            raise self._stop("found nothing in it; write a job (name, model, data, batch, train)")
        if isinstance(start, DocumentStartEvent) and (start.version or start.tags):
            raise self._stop(f"found a directive (%) on {_line(start)}; remove it")
        value = self._value(next(self._events), self.base)
        next(self._events)  # the end of the document
        if not isinstance(event := next(self._events), StreamEndEvent):
            raise self._stop(f"found a second document on {_line(event)}; write one job per file")
        return value

    def _parse(self) -> Iterator[Event]:
        try:
            yield from yaml.parse(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            raise self._stop(_syntax(error, self.text)) from None
        except (yaml.YAMLError, ValueError, OverflowError):  # PyYAML's int() and chr() of what was written
            raise self._stop("found what is not YAML; write keys and values, with text in quotes") from None

    def _value(self, event: Event, path: _Path) -> Any:
        trouble = _trouble(event)
        if trouble:
            self.mistakes.append(_Mistake(path=path, text=f"{trouble} (on {_line(event)})"))
        value = self._content(event, path)
        return _Unusable("a value that is not read") if trouble else value

    def _content(self, event: Event, path: _Path) -> Any:
        if len(path) > MAX_DEPTH:
            raise self._stop(f"found more than {MAX_DEPTH} levels on {_line(event)}; write fewer levels")
        if isinstance(event, ScalarEvent):
            return _resolve(event.value, plain=event.implicit[0])
        if isinstance(event, MappingStartEvent):
            return self._mapping(path)
        return self._list(path) if isinstance(event, CollectionStartEvent) else None

    def _list(self, path: _Path) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: _Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, str] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, path)
            if key is None:
                self._skip((*path, "?"))
                continue
            value = self._value(next(self._events), (*path, key))
            if key in values:
                found = f"found twice, on {lines[key]} and {_line(event)}; write it once"
                self.mistakes.append(_Mistake(path=(*path, key), text=found))
            values.setdefault(key, value)
            lines.setdefault(key, _line(event))
        return values

    def _key(self, event: Event, path: _Path) -> str | None:
        """The key, or None when it is no text: that is noted, and the caller reads on without it."""
        count = len(self.mistakes)
        trouble = _trouble(event)
        value = self._content(event, (*path, "?"))
        if isinstance(event, ScalarEvent) and event.implicit[0] and event.value == "<<":
            trouble = f"found a merge key (<<); {_NO_ALIASES}"
        if not trouble and isinstance(value, str):
            return value
        found = trouble or f"found a key that is {_show(value)}; write a key that is text, quoted if need be"
        # One line for the key says it; mistakes inside it would stand at a path that nobody wrote.
        self.mistakes[count:] = [_Mistake(path=path, text=f"{found} (on {_line(event)})", hides=False)]
        return None

    def _skip(self, path: _Path) -> None:
        """Reads on past the value of a key that is refused, without a word about it."""
        count = len(self.mistakes)
        self._value(next(self._events), path)
        del self.mistakes[count:]

    def _stop(self, text: str) -> JobError:
        return _error(self.source, [*self.mistakes, _Mistake(path=self.base, text=text)])


def _trouble(event: Event) -> str:
    """What is refused about a node whatever its value; empty if nothing is."""
    anchor = getattr(event, "anchor", None)
    if isinstance(event, AliasEvent):
        return f"found the alias *{_cut(anchor or '')}; {_NO_ALIASES}"
    if anchor:
        return f"found the anchor &{_cut(anchor)}; {_NO_ALIASES}"
    tag = getattr(event, "tag", None)
    if not tag:
        return ""
    written = re.sub("^tag:yaml.org,2002:", "!!", tag)
    return f"found the tag {_cut(written)}; tags are not read, remove it or put the text in quotes"


def _resolve(text: str, *, plain: bool) -> Any:
    """The value of a scalar; `plain` means without quotes."""
    if not plain:
        # PyYAML takes half a surrogate pair from an escape; no file can be named by it, no UTF-8 written.
        return _Unusable(f"half a character, {_show(text)}") if _SURROGATE.search(text) else text
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if _INTEGER.fullmatch(text):
        digits = len(text.lstrip("+-"))
        return int(text) if digits <= MAX_DIGITS else _Unusable(f"a whole number of {digits} digits")
    return _decimal(text) if _DECIMAL.fullmatch(text) else text


def _decimal(text: str) -> float | _Unusable:
    value = float(text)
    if math.isinf(value):
        return _Unusable(f"{_cut(text)} (larger than any number here)")
    if not value and re.search("[1-9]", text.lower().partition("e")[0]):
        return _Unusable(f"{_cut(text)} (too close to zero for a number here)")
    return value


def _line(event: Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "a line"


def _syntax(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return "found what is not YAML; write keys and values, with text in quotes"
    line, column = mark.line, mark.column
    lines = text.split("\n")
    here = lines[line] if line < len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    if "\t" in indent or here[column : column + 1] == "\t":
        column = here.index("\t")
        return f"line {line + 1}, column {column + 1}: found a tab; write spaces"
    problem = _cut(error.problem or error.context or "what is not YAML").replace("\\t", "a tab")
    return f"line {line + 1}, column {column + 1}: found a YAML mistake ({problem}); mend it, or quote the text"


# --- overrides --------------------------------------------------------------------------------------------


def _lay_over(mapping: dict[str, Any], override: str, reader: _Reader) -> None:
    """Sets one `key.path=value` in the mapping; a mistake is added to the reader's."""
    key, sign, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not sign or not all(path) or len(path) > MAX_DEPTH:
        found = f"found the override {_quote(override)}; write key.path=value, such as train.steps=400"
        reader.mistakes.append(_Mistake(text=found, hides=False))
        return
    value = _override_value(text.strip(), path, reader)
    section = mapping
    for depth, name in enumerate(path[:-1], start=1):
        if section.get(name) is None:
            section[name] = {}
        if not isinstance(section[name], dict):
            if not isinstance(section[name], _Unusable):  # of that, a line is certain already
                found = f"found {_show(section[name])}, which {_dotted(path)} cannot go into"
                fix = f"write the override {_dotted(path[:depth])}=value"
                reader.mistakes.append(_Mistake(path=path[:depth], text=f"{found}; {fix}"))
            return
        section = section[name]
    section[path[-1]] = value


def _override_value(text: str, path: _Path, reader: _Reader) -> Any:
    text = _readable(text, reader.source, path)
    if not text.startswith(('"', "'", "[", "{")):
        return _resolve(text, plain=True)
    return _Reader(source=reader.source, text=text, base=path, mistakes=reader.mistakes).value()


# --- the model's errors -> plain words --------------------------------------------------------------------


def _translate(error: ValidationError, told: frozenset[_Path]) -> list[_Mistake]:
    """The model's complaints in our words, less those about values at or below a path of `told`."""
    root = Job.model_json_schema()
    mistakes: list[_Mistake] = []
    for item in error.errors(include_url=False):
        path = _walk(root, item["loc"])[0]
        if any(path[:length] in told for length in range(len(path) + 1)):
            continue
        # A file of junk can hold 100,000 mistakes; only the first ones are shown, the rest are counted.
        mistakes.append(_mistake(root, item) if len(mistakes) < MAX_MISTAKES else _Mistake(text=""))
    return mistakes


def _mistake(root: _Schema, item: Mapping[str, Any]) -> _Mistake:
    """One complaint of pydantic in our words; its type matters only where the input does not say it all."""
    kind, value = item["type"], item["input"]
    path, node = _walk(root, item["loc"])
    if kind == "extra_forbidden":
        return _Mistake(path=path, text=f"found an unknown key; {_nearest(root, item['loc'])}")
    if kind in {"value_error", "assertion_error"}:
        return _Mistake(path=path, text=_escape(str(item["ctx"]["error"])))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = node["discriminator"]["propertyName"]
        path, value = (*path, tag), value.get(tag)
        found = _show(value) if kind == "union_tag_invalid" else "nothing"
        return _Mistake(path=path, text=f"found {found}; write {_one_of(node['discriminator']['mapping'])}")
    if not node:
        return _Mistake(path=path, text=f"found {_show(value)}; {_unforeseen(item['msg'])}")
    found = "nothing" if kind == "missing" else _show(value)
    return _Mistake(path=path, text=f"found {found}; write {_meant(node, value) or _expected(root, node)}")


def _unforeseen(message: str) -> str:
    """A complaint of a type that no field had when this was written."""
    return "write what it should be: " + _cut(re.sub(r"^\w+ should (be )?", "", message), at=200)


def _walk(root: _Schema, loc: Iterable[str | int]) -> tuple[_Path, _Schema]:
    """The path in the file and the schema there, from pydantic's location (it also names a union's kind)."""
    path: _Path = ()
    node = root
    for part in loc:
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            node = _deref(root, {"$ref": kinds[part]})
        else:
            path, node = (*path, part), _deref(root, _child(node, part))
    return path, node


def _child(node: _Schema, part: str | int) -> _Schema:
    if isinstance(part, int):
        items = node.get("prefixItems", [])
        return items[part] if part < len(items) else {}
    more = node.get("additionalProperties")
    child: _Schema = node.get("properties", {}).get(part) or (more if isinstance(more, dict) else {})
    return child


def _deref(root: _Schema, node: _Schema) -> _Schema:
    name = node.get("$ref", "").rpartition("/")[2]
    return root["$defs"][name] if name else node


def _nearest(root: _Schema, loc: Sequence[str | int]) -> str:
    """What to write for an unknown key: the near ones here, or the same name elsewhere, or all known here."""
    from difflib import get_close_matches  # only a wrong file pays for it

    section, node = _walk(root, loc[:-1])
    key, known = str(loc[-1]), list(node.get("properties", {}))
    near = [(*section, name) for name in get_close_matches(key.lower(), known)]
    near = near or [path for path in _all_paths(root, root) if path[-1] == key]
    if near:
        return f"did you mean {_or(list(dict.fromkeys(map(_dotted, near))))}?"
    return f"the keys of {_dotted(section) or 'a job'} are {', '.join(known)}"


def _all_paths(root: _Schema, node: _Schema) -> Iterator[_Path]:
    for name, child in node.get("properties", {}).items():
        yield (name,)
        for section in _deref(root, child).get("oneOf", [child]):
            yield from ((name, *path) for path in _all_paths(root, _deref(root, section)))


# --- a schema -> what to write ----------------------------------------------------------------------------


def _expected(root: _Schema, node: _Schema) -> str:
    """What the schema takes, in plain words, with its bounds and what the field means."""
    note = node.get("description", "")
    if node.get("type") == "object" or "oneOf" in node:
        return _expected_section(root, node)
    if "anyOf" in node:
        words = " or ".join(_expected(root, choice) for choice in node["anyOf"])
    elif "prefixItems" in node:
        items = [_expected(root, item) for item in node["prefixItems"]]
        words = f"a list of {len(items)}: [{', '.join(items)}]"
    elif "enum" in node or "const" in node:
        words = _one_of(node.get("enum") or [node["const"]])
    else:
        words = _expected_scalar(node)
    return f"{words} ({note})" if note else words


def _expected_section(root: _Schema, node: _Schema) -> str:
    if "discriminator" in node:
        union = node["discriminator"]
        return f"a section with {union['propertyName']}: {_one_of(union['mapping'])}"
    more = node.get("additionalProperties")
    if isinstance(more, dict):
        return f"a section of names, each with {_expected(root, more)}"
    if required := node.get("required"):
        return f"a section with at least the key{'s' * (len(required) > 1)} {', '.join(required)}"
    return f"a section with any of the keys {', '.join(node['properties'])}"


def _expected_scalar(node: _Schema) -> str:
    kind = node.get("type")
    if kind == "integer":
        return f"a whole number{_range(node)}"
    if kind == "number":
        return f"a number{_range(node)}"
    if kind == "string" and "pattern" in node:
        return f"text that matches {node['pattern']}"
    if kind == "string":
        return "text that is not empty" if node.get("minLength") else "text"
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "another value")


def _range(node: _Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    said = [f"{word} {node[bound]}" for bound, word in words.items() if bound in node]
    return f" {' and '.join(said)}" if said else ""


def _meant(node: _Schema, value: Any) -> str:
    """The whole number that a value such as 32.0 stands for, if the field takes it; else empty."""
    for choice in node.get("anyOf", [node]):
        if choice.get("type") == "integer" and isinstance(value, float) and value.is_integer():
            low, high = choice.get("minimum", -math.inf), choice.get("maximum", math.inf)
            if low <= value <= high and value < choice.get("exclusiveMaximum", math.inf):
                return f"{int(value)}"
    return ""


def _one_of(names: Iterable[str]) -> str:
    names = list(names)
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# --- values -> text on one line ---------------------------------------------------------------------------


def _error(source: str, mistakes: Sequence[_Mistake]) -> JobError:
    shown = mistakes[:MAX_MISTAKES]
    lines = [": ".join(filter(None, (source, _dotted(mistake.path), mistake.text))) for mistake in shown]
    if more := len(mistakes) - len(shown):
        lines.append(f"... and {more} more")
    return JobError("\n".join(lines))


def _dotted(path: _Path) -> str:
    """`train.optimizer.betas[1]`; a key that could be misread stands in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(_cut(part)) else _quote(part))
    return text


def _show(value: Any) -> str:
    """A value as it would stand in the file, cut short, with its kind."""
    if isinstance(value, _Unusable):
        return value.found
    if isinstance(value, str):
        return f"{_quote(value)} (text)"
    if isinstance(value, dict):
        return f"a section with the keys {_cut(', '.join(map(str, value)))}" if value else "an empty section"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    return _show_number(value) if isinstance(value, int | float) else "null"


def _show_number(value: float) -> str:
    if isinstance(value, int):
        return f"{value} (a whole number)"
    if math.isfinite(value):
        return f"{value!r} (a decimal number)"
    return ".nan (not a number)" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf (infinity)"


def _quote(text: str) -> str:
    return '"' + _cut(text).replace('"', '\\"') + '"'


def _cut(text: str, at: int = MAX_SHOWN) -> str:
    shown = _escape(text[: at + 1])
    return shown if len(shown) <= at else shown[:at] + "..."


def _escape(text: str) -> str:
    """The text with what does not print, line breaks first of all, written as Python would."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


# --- values -> YAML ---------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes what `_Reader` reads: no aliases, and quotes around any text that could be read as a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the name and arguments are PyYAML's
        return True


def _dump_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    bare = _BARE_TEXT.fullmatch(text) and isinstance(_resolve(text, plain=True), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _dump_tuple(dumper: _Dumper, values: tuple[Any, ...]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


_Dumper.add_representer(str, _dump_text)
_Dumper.add_representer(tuple, _dump_tuple)
