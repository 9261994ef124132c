"""The files of reference log-probabilities: whole, of their place and of what they follow from, or none."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_sets import SampleSet

from planner.errors import NewerFormat, TrainingFailed
from planner.job import Job
from planner.store.storage import Storage
from planner.train.reference.cache import TableFiles, TokenLimit, parts_of


@pytest.fixture
def parts(tmp_path):
    """Two parts, of 2049 and of 951 rows."""
    return TableFiles(storage=Storage(str(tmp_path)), key="k", num_rows=3000, chunk_rows=3)


def values(parts, start):
    num_rows = sum(map(len, parts.chunks(start)))
    return np.random.default_rng(start).normal(size=(num_rows, 2)).astype(np.float32)


def test_what_was_written_is_read(parts):
    """To the bit."""
    assert list(parts.starts) == [0, 2049]
    for start in parts.starts:
        assert parts.read(start) == (None, "")
        parts.write(start, values(parts, start))
    for start in parts.starts:
        found, why = parts.read(start)
        assert np.array_equal(found, values(parts, start))
        assert not why


@given(
    tokens=st.lists(st.integers(1, 9), min_size=1, max_size=40), max_tokens=st.integers(1, 20), rows=st.integers(1, 5)
)
def test_packed_chunks_keep_to_their_limit(tokens, max_tokens, rows):
    """Rows in order, in as large chunks as rows and tokens let them. A row too long is alone."""
    limit = TokenLimit(row_tokens=np.array(tokens), max_tokens=max_tokens)
    parts = TableFiles(storage=Storage("/nowhere"), key="k", num_rows=len(tokens), chunk_rows=rows, limit=limit)
    chunks = parts.chunks(0)
    assert [row for chunk in chunks for row in chunk] == list(range(len(tokens)))
    for chunk in chunks:
        held = sum(tokens[row] for row in chunk)
        assert len(chunk) <= rows
        assert held <= max_tokens or len(chunk) == 1
        is_last = chunk.stop == len(tokens) or chunk.stop % rows == 0
        assert is_last or held + tokens[chunk.stop] > max_tokens


HARMS = ("cut", "a byte", "a letter", "no format", "empty", "only a digest", "another part's", "another key's")


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_part_does_not_count(parts, tmp_path, harm):
    """The reason names the file."""
    for start in parts.starts:
        parts.write(start, values(parts, start))
    file = tmp_path / parts.name(2049)
    content = file.read_bytes()
    dataclasses.replace(parts, key="other").write(2049, values(parts, 2049))
    file.write_bytes(
        {
            "cut": content[:-8],
            "a byte": content[:60] + bytes([content[60] ^ 1]) + content[61:],
            "a letter": b"P" + content[1:],
            "no format": content[content.index(b"\n") + 1 :],
            "empty": b"",
            "only a digest": content[: content.index(b"\n") + 33],
            "another part's": (tmp_path / parts.name(0)).read_bytes(),
            "another key's": (tmp_path / "reference" / "other" / "000000002049").read_bytes(),
        }[harm]
    )
    found, why = parts.read(2049)
    assert found is None
    assert why.startswith("reference/k/000000002049: ")
    assert parts.read(0)[0] is not None


def test_another_versions_part_is_refused(parts, tmp_path):
    """It may have cost hours, so it is never overwritten."""
    parts.write(0, values(parts, 0))
    file = tmp_path / parts.name(0)
    content = file.read_bytes().replace(b"planner-reference 1\n", b"planner-reference 2\n")
    file.write_bytes(content)
    with pytest.raises(NewerFormat, match=r"format 2, this one reads 1\)\. Use .* or remove reference/k to compute it"):
        parts.read(0)
    assert file.read_bytes() == content


@given(num_rows=st.integers(1, 20_000_000), chunk_rows=st.integers(1, 4096))
def test_parts_cover_all_rows_once(num_rows, chunk_rows):
    """In chunks that no part cuts, whatever the number of workers: there are never too many files."""
    parts = TableFiles(storage=Storage("/nowhere"), key="k", num_rows=num_rows, chunk_rows=chunk_rows)
    assert len(parts.starts) <= 1024
    assert parts.rows_each % chunk_rows == 0
    for start in (parts.starts[0], parts.starts[-1]):
        chunks = parts.chunks(start)
        assert chunks[0].start == start
        assert all(0 < len(chunk) <= chunk_rows and chunk.start % chunk_rows == 0 for chunk in chunks)
        assert chunks[-1].stop == min(start + parts.rows_each, num_rows)


def test_a_number_that_is_not_finite_is_named_by_its_row(parts):
    """And nothing is kept."""
    broken = values(parts, 2049)
    broken[5, 1] = np.nan
    with pytest.raises(TrainingFailed, match="log-probability of row 2054 is not finite"):
        parts.write(2049, broken)
    assert parts.read(2049) == (None, "")


def test_whatever_the_numbers_follow_from_makes_another_table(tmp_path):
    """The data, the model, another reference, the seed, the precision and the chunk; not the batch or the beta."""
    pairs = SampleSet(kind="pairs")
    job = {
        "name": "test",
        "model": {"kind": "hf", "path": "m", "context": 16},
        "data": {"kind": "pairs", "path": "rows.json"},
        "objective": {"kind": "dpo", "reference": "cached"},
        "batch": {"global": 8, "max_micro": 2},
        "train": {"steps": 1, "optimizer": {"kind": "sgd", "lr": 0.1}},
    }

    def key(model="0", dataset=pairs, **sections):
        changed = {name: {**job[name], **section} for name, section in sections.items()}
        made = Job.model_validate({**job, **changed})
        return parts_of(made, model, dataset, Storage(str(tmp_path))).key

    others = {
        key(model="2"),
        key(dataset=SampleSet(kind="pairs", context=25)),
        key(dataset=SampleSet(kind="pairs", num_rows=61)),
        key(objective={"reference_model": "other"}),
        key(train={"seed": 1}),
        key(train={"precision": "bf16"}),
        key(batch={"max_micro": 3}),
    }
    assert len({key(), *others}) == 8
    assert key(batch={"global": 9}, objective={"beta": 0.7}, train={"steps": 2}) == key()
