"""Reads and writes keys by their rows: what needs no code of a system's own.

`carried` takes keys of a recipe into the draft of a job, `written` writes values of a job as options.
"""

import shlex
from typing import Any

from planner.recipes.drafting import carry
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.rendering import Rendering
from planner.recipes.rule import KeyRule, Rules
from planner.recipes.scalars import number


def carried(draft: Draft, keys: KeyReader, *names: str) -> None:
    """Set the job's value of each of these keys, or the system's default, with a note. Mistakes are added to `keys`."""
    for name in names:
        row = keys.rules.of_key(name)
        assert row is not None, name
        carry(draft, keys, name, row.ours, keys.read(name), whose=keys.versions)


def carried_if_set(draft: Draft, keys: KeyReader, *names: str) -> None:
    """Set the job's value of each of these keys that is not null, with a note."""
    carried(draft, keys, *(name for name in names if keys.has(name)))


def written(rendering: Rendering, rules: Rules, *names: str) -> None:
    """Write the job's value of each of these keys as `--key value`, if the job has one."""
    for name in names:
        row = rules[name]
        value = rendering.value(row.ours)
        if value is not None or row.value == "norm":
            rendering.write(row.ours, f"--{name} {_text(row, value)}")


def _text(row: KeyRule, value: Any) -> str:
    """A value as its system's command line takes it. No clipping is a norm of 0."""
    match row.value:
        case "norm":
            return number(value) if value else "0"
        case "number" | "whole":
            return number(value)
        case "truth":
            return str(bool(value)).lower()
    return shlex.quote(str(value))
