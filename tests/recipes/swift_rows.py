"""The rows of swift/sizes.csv: its shipped examples, and changes to them, with what they train on 1 to 16 GPUs."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "swift"
SIZES = range(1, 17)


@dataclass(frozen=True, kw_only=True)
class Row:
    file: str
    """the example, empty for a row of our own"""
    verb: str
    launch: str
    options: dict
    expected: dict
    """GPUs -> samples per optimizer step as text, `-` where it is refused, `?` where it is not fixed"""
    columns: dict

    @property
    def name(self):
        return self.file or f"{self.verb} {self.columns['options']}"


@cache
def rows():
    with (FOLDER / "sizes.csv").open(encoding="utf-8") as file:
        return tuple(_row(columns) for columns in csv.DictReader(file))


def _row(columns):
    return Row(
        file=columns["file"],
        verb=columns["verb"],
        launch=columns["launch"],
        options={"model": "org/model", "dataset": "rows.jsonl", **json.loads(columns["options"])},
        expected=dict(zip(SIZES, columns["rows"].split(), strict=True)),
        columns=columns,
    )
