"""The rows of llamafactory/sizes.csv: LLaMA-Factory's shipped examples, with what they train on 1 to 16 GPUs."""

import csv
import shlex
from dataclasses import dataclass
from functools import cache

import llamafactory_judge as judge

SIZES = range(1, 17)
VARIABLES = ("FORCE_TORCHRUN", "USE_MCA", "USE_RAY", "USE_KT", "USE_V1", "ALLOW_EXTRA_ARGS")


@dataclass(frozen=True, kw_only=True)
class Row:
    file: str
    config: dict
    launcher: str
    environment: dict
    """variables of `command` that LLaMA-Factory reads"""
    expected: dict
    """GPUs -> samples per optimizer step as text, `-` where it is refused, `?` where it is not fixed"""
    columns: dict


@cache
def rows():
    with (judge.FOLDER / "sizes.csv").open() as file:
        return tuple(_row(columns) for columns in csv.DictReader(file))


def _row(columns):
    words = shlex.split(columns["command"])
    environment = {}
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    return Row(
        file=columns["file"],
        config=judge.load(judge.FOLDER / columns["file"]),
        launcher=words[0],
        environment=environment,
        expected={gpus: columns[f"w{gpus}"] for gpus in SIZES},
        columns=columns,
    )
