"""Applies options behind a recipe, in the syntax of argparse and Hydra, to its keys."""

import re
from collections.abc import Sequence
from typing import Any

from planner.recipes.entries import COMMAND_LINE, Entry
from planner.recipes.scalars import scalar
from planner.recipes.trl.keys import RULES, TRUE_BY_DEFAULT

# The beginning of the next option, which is no value of the option before it.
_NEXT = re.compile(r"--|\+*[A-Za-z_][\w.]*=")
# Options whose value may look like an override: `rank=64, scale=0.1`. None of them stands alone.
_WORDS = frozenset(RULES.of(value="words"))
_OF_PAIRS = frozenset({"optim_args", *_WORDS, *RULES.of(value="text"), *RULES.of(value="scalar")})


def overrides(arguments: Sequence[str], keys_of: dict[str, Entry], where: str = COMMAND_LINE) -> list[str]:
    """Write options into `keys_of`, and return the arguments that are none.

    Args:
        arguments: options such as `--key value`, `--key=value`, `--flag`, `--no_flag` and `key=value`.
        keys_of: the recipe's entries, which change.
        where: the place of the new entries.
    """
    others, index = [], 0
    while index < len(arguments):
        argument = arguments[index]
        name, sign, value = argument.partition("=")
        if not name.startswith("--") and not sign:
            others.append(argument)
            index += 1
            continue
        key = name.lstrip("-+").replace("-", "_")
        values = [value] if sign else []
        index += 1
        if not sign and key in _OF_PAIRS and index < len(arguments) and not arguments[index].startswith("--"):
            values.append(arguments[index])
            index += 1
        while not sign and index < len(arguments) and not _NEXT.match(arguments[index]):
            values.append(arguments[index])
            index += 1
        read: list[Any] = list(values) if key in _WORDS else [scalar(each) for each in values]
        if not read and name.startswith("--no") and (positive := key.removeprefix("no_")) in TRUE_BY_DEFAULT:
            key, read = positive, [False]
        # An option replaces a whole section of the file.
        for inner in [name for name in keys_of if name.startswith(f"{key}.")]:
            del keys_of[inner]
        keys_of[key] = Entry(value=True if not read else read[0] if len(read) == 1 else read, where=where)
    return others
