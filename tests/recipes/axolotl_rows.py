"""The rows of axolotl/sizes.csv: its shipped examples, and changes to them, with what they train on 1 to 16 GPUs."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "axolotl"
SIZES = range(1, 17)


@dataclass(frozen=True, kw_only=True)
class Row:
    file: str
    overrides: dict
    """keys that replace those of the file"""
    expected: dict
    """GPUs -> samples per optimizer step as text, `-` where it is refused, `?` where it is not fixed"""
    columns: dict

    @property
    def name(self):
        return f"{self.file} {self.columns['overrides']}".strip()


@cache
def rows():
    with (FOLDER / "sizes.csv").open() as file:
        return tuple(_row(columns) for columns in csv.DictReader(file))


def _row(columns):
    batches = columns["rows"].split()
    return Row(
        file=columns["file"],
        overrides=json.loads(columns["overrides"] or "{}"),
        expected=dict(zip(SIZES, batches, strict=True)),
        columns=columns,
    )
