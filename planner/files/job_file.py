"""A job file and its overrides -> the Job, and back."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from planner.base.format_versions import refusal
from planner.errors import printable
from planner.files.loader import Unreadable, read_text
from planner.files.messages import InvalidValue, KeyPath, Mistake, dotted, job_error, quote, show
from planner.files.validation_errors import translate
from planner.files.yaml_reader import MAX_DEPTH, Reader, resolve
from planner.job import Job

# Characters that YAML 1.2 does not allow in a file. Also those that YAML 1.2 takes as characters, but PyYAML as a line
# break (next line, the separators) or as nothing (a byte order mark after the start).
_FORBIDDEN = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_BARE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


def read_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job in a YAML file of UTF-8 text, at most 1 MiB.

    Args:
        path: the file.
        overrides: each is `key.path=value`. They are applied in order before the job is checked, and add missing
            sections. A value that starts with a quote, `[` or `{` is read as YAML. Any other is one plain scalar, so
            `data.path=*.txt` needs no quotes.

    Raises:
        JobError: the file cannot be read, or is wrong. The message has one line per mistake.
    """
    source = str(path)
    try:
        text = read_text(path, "job file")
    except Unreadable as error:
        raise job_error(source, [Mistake(text=str(error))]) from None
    return parse_job(text, source=source, overrides=overrides)


def parse_job(text: str, *, source: str = "job", overrides: Sequence[str] = ()) -> Job:
    """The job in a YAML text.

    Args:
        text: the YAML.
        source: the name that begins each line of an error.
        overrides: `key.path=value`, applied in order before the job is checked, as in `read_job`.

    Raises:
        JobError: the text or an override is wrong. The message has one line per mistake.
    """
    reader = Reader(source=source, text=_readable(text, source))
    mapping = reader.document()
    _take_format(mapping, reader)
    for override in overrides:
        _lay_over(mapping, override, reader)
    try:
        job = Job.model_validate(mapping)
    except ValidationError as error:
        told = frozenset(mistake.path for mistake in reader.mistakes if mistake.hides)
        raise job_error(source, reader.mistakes + translate(error, told)) from None
    if reader.mistakes:
        raise job_error(source, reader.mistakes)
    return job


def _take_format(mapping: dict[str, Any], reader: Reader) -> None:
    """Remove and check the key `format`, which only jobs stored by a run have."""
    if "format" not in mapping or isinstance(found := mapping.pop("format"), InvalidValue):
        return
    if why := refusal(found, "jobs"):
        reader.mistakes.append(Mistake(path=("format",), text=f"{why}. Use the version that wrote it"))


def dump_job(job: Job) -> str:
    """The job as YAML with every default. `parse_job` reads an equal job from it."""
    values = job.model_dump(by_alias=True)
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def _readable(text: str, source: str, base: KeyPath = ()) -> str:
    """The text with LF line ends and without a byte order mark. Characters that YAML does not allow are refused."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if bad := _FORBIDDEN.search(text):
        line, column = text.count("\n", 0, bad.start()) + 1, bad.start() - text.rfind("\n", 0, bad.start())
        found = f"line {line}, column {column}: found the control character {printable(bad[0])}"
        fix = 'Remove it, or write it as an escape in "quotes"'
        raise job_error(source, [Mistake(path=base, text=f"{found}. {fix}")])
    return text


def _lay_over(mapping: dict[str, Any], override: str, reader: Reader) -> None:
    """Set one `key.path=value` in the mapping, or add a mistake to the reader."""
    key, sign, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not sign or not all(path) or len(path) > MAX_DEPTH:
        found = f"found the override {quote(override)}. Write key.path=value, such as train.steps=400"
        reader.mistakes.append(Mistake(text=found, hides=False))
        return
    value = _override_value(text.strip(), path, reader)
    section = mapping
    for depth, name in enumerate(path[:-1], start=1):
        if section.get(name) is None:
            section[name] = {}
        if not isinstance(section[name], dict):
            if not isinstance(section[name], InvalidValue):  # an `InvalidValue` value already has its own mistake
                found = f"found {show(section[name])}, which cannot hold {dotted(path)}"
                fix = f"Write the override {dotted(path[:depth])}=value"
                reader.mistakes.append(Mistake(path=path[:depth], text=f"{found}. {fix}"))
            return
        section = section[name]
    section[path[-1]] = value


def _override_value(text: str, path: KeyPath, reader: Reader) -> Any:
    text = _readable(text, reader.source, path)
    if not text.startswith(('"', "'", "[", "{")):
        return resolve(text, plain=True)
    return Reader(source=reader.source, text=text, base=path, mistakes=reader.mistakes).value()


class _Dumper(yaml.SafeDumper):
    """Writes YAML that `Reader` reads: no aliases, and quotes around text that could be read as a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the name and arguments are PyYAML's
        return True


def _dump_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    bare = _BARE_TEXT.fullmatch(text) and isinstance(resolve(text, plain=True), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _dump_tuple(dumper: _Dumper, values: tuple[Any, ...]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


_Dumper.add_representer(str, _dump_text)
_Dumper.add_representer(tuple, _dump_tuple)
