"""Writes a recipe's draft as a job file with comments, and parses that file, so that it is checked before use."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.errors import printable
from planner.files import parse_job
from planner.files.yaml_reader import resolve
from planner.job import Job
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import number

_BARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./ %-]*")
_REMARK_AT = 34


def job_of(recipe: Recipe) -> tuple[Job, str]:
    """The job of a recipe, and the text of its job file.

    Raises:
        JobError: a value is outside the bounds of its field.
    """
    text = "\n".join([*_heading(recipe), *_section(recipe.draft.job, recipe.draft.remarks, ""), ""])
    return parse_job(text, source=f"{recipe.source}, as a job"), text


def _heading(recipe: Recipe) -> Iterator[str]:
    yield f"# Converted by planner from {printable(recipe.source)} ({recipe.title}, {recipe.method})."
    if recipe.draft.job.get("objective") == "own":
        yield "# A loop of your own (data.path) computes the loss. planner keeps its batches exact at every GPU count."
        yield "# See docs/guides/your-own-loop.md."
    for each in recipe.draft.to_do:
        yield f"# to do: {printable(each.text)}"
        yield from (f"#   {printable(command)}" for command in each.commands)


def _section(values: Mapping[str, Any], remarks: Mapping[str, str], path: str) -> Iterator[str]:
    indent = "  " * path.count(".")
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _section(value, remarks, f"{name}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{key}:"
            yield from _sets(value, indent) if key == "mixture" else _items(value, indent)
        else:
            line = f"{indent}{key}: {_leaf(value)}"
            yield f"{line.ljust(_REMARK_AT)}  # {printable(remarks[name])}" if name in remarks else line


def _items(values: Sequence[Mapping[str, Any]], indent: str) -> Iterator[str]:
    """A list of sections with a line for each value."""
    for item in values:
        lines = [f"{key}: {_leaf(value)}" for key, value in item.items()]
        yield f"{indent}  - {lines[0]}"
        yield from (f"{indent}    {line}" for line in lines[1:])


def _sets(values: Sequence[Mapping[str, Any]], indent: str) -> Iterator[str]:
    """A list of data sets with a line for each, as there may be many."""
    for each in values:
        yield f"{indent}  - {_leaf(each)}"


def _leaf(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_leaf(its)}' for key, its in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_leaf, value))}]"
    return str(value).lower() if isinstance(value, bool) else _text_or_number(value)


def _text_or_number(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        text = number(value)
        return text if "." in text or "e" in text else f"{text}.0"
    if isinstance(value, str):
        bare = _BARE.fullmatch(value) and not value.endswith(" ") and isinstance(resolve(value, plain=True), str)
        return value if bare else json.dumps(value, ensure_ascii=False)
    return str(value)
