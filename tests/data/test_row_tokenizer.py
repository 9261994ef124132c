"""A kind of rows of another package: several samples of a row, and what is said of its rows and its code."""

import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from byte_models import gpt
from rows_of import all_parts

from planner.data import lazy_sets
from planner.data.base import no_progress
from planner.data.examples import BadRow, PromptCompletions
from planner.data.formats import RowFormat
from planner.data.pairs import PairRows
from planner.data.row_kinds import open_samples
from planner.errors import DataError
from planner.job import RowsData


class Ranked(RowsData):
    kind: Literal["ranked"] = "ranked"


class RankedRows(PairRows):
    """Each answer against the next one."""

    formats = (RowFormat(name="answers", keys=("answers",), read=lambda row: row["answers"]),)

    def examples(self, found):
        if found == "bad":
            raise BadRow("answers is a text")
        return [PromptCompletions(prompt="q", completions=(better, worse)) for better, worse in pairwise(found)]


def opened(folder, *answers, **settings):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"answers": each}) + "\n" for each in answers))
    return open_samples(Ranked(path=str(path), **settings), gpt(20), no_progress, RankedRows)


def test_a_row_may_give_several_samples(tmp_path):
    """In their order, or none."""
    found = opened(tmp_path, ["a", "b", "c"], ["d"], ["e", "f"])
    assert [parts[1:] for parts in all_parts(found)] == [(b"a\0", b"b\0"), (b"b\0", b"c\0"), (b"e\0", b"f\0")]
    with pytest.raises(DataError, match=r"rows.jsonl' holds 2 rows and no sample of them"):
        opened(tmp_path, ["a"], [])


def test_on_demand_each_row_gives_the_same_number(tmp_path, monkeypatch):
    """A sample is found by it. A row that was not tried is refused when a step needs it, and never another one used."""
    rows = [[f"{number}a", f"{number}b", f"{number}c"] for number in range(9)]
    ahead, lazily = (opened(tmp_path, *rows, tokenize=how) for how in ("ahead", "on_demand"))
    assert all_parts(lazily) == all_parts(ahead)
    with pytest.raises(DataError, match=r"the same number of samples of each row, .* Write tokenize: ahead"):
        opened(tmp_path, *rows, ["a", "b"], tokenize="on_demand")
    monkeypatch.setattr(lazy_sets, "_TRIED", 2)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 2)
    for other in (["a", "b"], ["a", "b", "c", "d"]):
        found = opened(tmp_path, rows[0], other, *rows[1:], tokenize="on_demand")
        for asked in ([2], [3], [0, 2], [2, 5]):
            with pytest.raises(DataError, match=r"another for .*rows.jsonl"):
                found.samples(asked)
        assert [sample.parts() for sample in found.samples([0, 5])] == [ahead.sample(n).parts() for n in (0, 3)]


def test_a_bad_row_is_counted_once(tmp_path):
    """However many of its samples cannot be used. Its other samples are used."""
    rows = (["a", "a", "a", "b"], "bad", ["c", "d"])
    with pytest.raises(DataError, match="2 of 3 rows cannot be used") as caught:
        opened(tmp_path, *rows)
    assert "rows.jsonl:2: answers is a text" in str(caught.value)
    found = opened(tmp_path, *rows, bad_rows="skip")
    assert [parts[1:] for parts in all_parts(found)] == [(b"a\0", b"b\0"), (b"c\0", b"d\0")]
    assert found.notes[0].startswith("2 of 3 rows were left out")


def test_an_error_of_the_package_names_the_row(tmp_path):
    """And the line of its code."""
    with pytest.raises(DataError, match=r"rows.jsonl:2: the code of data.kind ranked fails: TypeError.*test_row"):
        opened(tmp_path, ["a", "b"], 7)


def test_the_code_of_a_package_is_part_of_what_samples_depend_on():
    """Its own file, and none of planner's."""
    assert RankedRows.code_of_package() == (sha256(Path(__file__).read_bytes()).hexdigest(),)
    assert PairRows.code_of_package() == ()
