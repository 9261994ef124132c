"""The rows of torchtune/sizes.csv: torchtune's shipped configurations, with what they train at 1 to 16 processes."""

import csv
import shlex
from dataclasses import dataclass
from functools import cache

import torchtune_judge as judge

SIZES = range(1, 17)


@dataclass(frozen=True, kw_only=True)
class Row:
    file: str
    recipe: str
    config: dict
    words: tuple
    """of the documented command"""
    expected: dict
    """processes -> samples per optimizer step as text, `-` where it is refused"""
    columns: dict


@cache
def rows():
    with (judge.FOLDER / "sizes.csv").open() as file:
        return tuple(_row(columns) for columns in csv.DictReader(file))


def _row(columns):
    return Row(
        file=columns["file"],
        recipe=columns["recipe"],
        config=judge.load(judge.FOLDER / columns["file"]),
        words=tuple(shlex.split(columns["command"])),
        expected={size: columns[f"w{size}"] for size in SIZES},
        columns=columns,
    )


def launched(recipe, size):
    """The processes of a row at a size: a recipe for one device runs without torchrun's options at size 1."""
    return size if size > 1 or recipe in judge.distributed_recipes() else None
