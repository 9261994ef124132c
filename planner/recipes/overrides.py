"""Options behind a recipe, as argparse and Hydra write them, laid over its keys."""

import re
from collections.abc import Sequence

from planner.recipes.entries import COMMAND_LINE, Entry
from planner.recipes.scalars import scalar
from planner.recipes.trl_keys import TRUE_BY_DEFAULT

# What is not another value of the option before it.
_NEXT = re.compile(r"--|\+*[A-Za-z_][\w.]*=")
# Options whose value looks like an override: `rank=64, scale=0.1`.
_OF_PAIRS = ("optim_args",)


def overrides(words: Sequence[str], keys_of: dict[str, Entry], where: str = COMMAND_LINE) -> list[str]:
    """`--key value`, `--key=value`, `--flag`, `--no_flag`, `key=value` laid over `keys_of`; returns the other words."""
    others, index = [], 0
    while index < len(words):
        word = words[index]
        name, sign, value = word.partition("=")
        if not name.startswith("--") and not sign:
            others.append(word)
            index += 1
            continue
        key = name.lstrip("-+").replace("-", "_")
        values = [value] if sign else []
        index += 1
        if not sign and key in _OF_PAIRS and index < len(words):
            values.append(words[index])
            index += 1
        while not sign and index < len(words) and not _NEXT.match(words[index]):
            values.append(words[index])
            index += 1
        read = [scalar(each) for each in values]
        if not read and name.startswith("--no") and (positive := key.removeprefix("no_")) in TRUE_BY_DEFAULT:
            key, read = positive, [False]
        keys_of[key] = Entry(value=True if not read else read[0] if len(read) == 1 else read, where=where)
    return others
