"""JSON lines as rows: what a row holds, and that every bad line is found at opening and named."""

import json
import pickle
import shutil

import numpy as np
import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import all_bytes

from planner.data.base import sample_row_counts
from planner.data.open import open_dataset
from planner.data.samples import Text
from planner.errors import DataError
from planner.job import JsonlData

GOOD = b'{"text": "fine"}\n'


def opened(path, context=1000, field="text"):
    return open_dataset(JsonlData(kind="jsonl", path=str(path), field=field), gpt(context))


def all_rows(dataset):
    return [all_bytes(dataset.sample(row)) for row in range(dataset.num_rows)]


def written(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    return path


# Everything that UTF-8 can say: no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(rows=st.lists(texts, min_size=1, max_size=8), context=st.integers(1, 30), escaped=st.booleans())
def test_every_row_is_its_text_between_boundaries(tmp_path_factory, rows, context, escaped):
    """UTF-8 between two NULs, cut to context + 1 tokens, whether or not the JSON was escaped."""
    folder = tmp_path_factory.mktemp("rows")
    content = "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=escaped) + "\n" for text in rows)
    dataset = opened(written(folder, content.encode()), context)
    assert dataset.num_rows == len(rows)
    assert all_rows(dataset) == [(b"\0" + text.encode() + b"\0")[: context + 1] for text in rows]
    shutil.rmtree(folder)


def test_an_empty_text_has_one_token_to_predict(tmp_path):
    """Its two boundaries."""
    assert all_rows(opened(written(tmp_path, b'{"text": ""}\n'))) == [b"\0\0"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"text": "a"}\n{"text": "b"}', id="no newline at the end"),
        pytest.param(b'{"text": "a"}\r\n{"text": "b"}\r\n', id="CRLF"),
        pytest.param(b'\n{"text": "a"}\n\n  \t\n\r\n{"text": "b"}\n\n', id="blank lines"),
        pytest.param(b'  {"text": "a"}  \n\t{"text": "b"}\n', id="spaces around"),
        pytest.param(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n', id="byte order mark"),
    ],
)
def test_any_line_ending_is_read(tmp_path, content):
    """The rows are the same two."""
    assert all_rows(opened(written(tmp_path, content))) == [b"\0a\0", b"\0b\0"]


def test_rows_run_on_over_the_files_of_a_glob(tmp_path):
    """In the order of names. Other files are left alone."""
    (tmp_path / "b.jsonl").write_text('{"text": "2"}\n\n{"text": "3"}\n')
    (tmp_path / "a.jsonl").write_text('{"text": "1"}\n')
    (tmp_path / "notes.txt").write_text("not JSON")
    assert all_rows(opened(tmp_path / "*.jsonl")) == [b"\x001\0", b"\x002\0", b"\x003\0"]


def test_the_field_is_the_one_that_the_job_names(tmp_path):
    """Another key, another text, another fingerprint."""
    path = written(tmp_path, b'{"text": "a", "body": "b"}\n')
    assert all_rows(opened(path, field="body")) == [b"\0b\0"]
    assert opened(path, field="body").fingerprint != opened(path).fingerprint


BAD_LINES = [
    pytest.param(b"{'text': 'a'}", "not JSON", id="not JSON"),
    pytest.param(b'{"text": "a"', "not JSON", id="torn"),
    pytest.param(b'{"text": "a"} {"text": "b"}', "not JSON", id="two on one line"),
    pytest.param(b'{"text": "\xff\xfe"}', "not JSON", id="not UTF-8"),
    pytest.param(b"\x80\x00\x00", "not JSON", id="binary"),
    pytest.param(b'{"text": ' + b"1" * 5000 + b"}", "not JSON", id="a number of 5000 digits"),
    pytest.param(b'{"text": ' + b"[" * 100_000, "nested too deeply", id="deeply nested, torn"),
    pytest.param(b'{"text": "a", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply", id="nested"),
    pytest.param(b'{"x": ' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply", id="nested objects"),
    pytest.param(b'{"body": "a"}', r"no text under 'text' \(found the keys \['body'\]\)", id="no such field"),
    pytest.param(b"{}", r"found the keys \[\]", id="empty object"),
    pytest.param(b'{"text": 7}', r"no text under 'text' \(found a number there\)", id="a number"),
    pytest.param(b'{"text": null}', "no text under 'text'", id="null"),
    pytest.param(b'{"text": ["a"]}', "no text under 'text'", id="a list"),
    pytest.param(b'"text"', "found a string instead of an object", id="a bare string"),
    pytest.param(b'["text"]', "found an array instead of an object", id="a bare list"),
    pytest.param(b"null", "found null instead of an object", id="a bare null"),
    pytest.param(rb'{"text": "\ud800"}', "lone surrogate", id="escaped lone surrogate"),
    pytest.param(b'{"text": "\xed\xa0\x80"}', "lone surrogate", id="encoded lone surrogate"),
    pytest.param(rb'{"\udfff": "a"}', "no text under 'text'", id="surrogate in a key"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
@pytest.mark.parametrize("end", [b"\n", b""], ids=["newline", "end of file"])
def test_a_bad_line_is_named_at_opening(tmp_path, line, message, end):
    """By file and line, blank lines counted: an editor must find it. And the message can be printed."""
    path = written(tmp_path, GOOD + b"\n" + GOOD + line + end)
    with pytest.raises(DataError, match=message) as caught:
        opened(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    str(caught.value).encode()


@given(content=st.binary(max_size=80))
def test_arbitrary_bytes_are_rows_or_a_data_error(tmp_path_factory, content):
    """Never anything else."""
    folder = tmp_path_factory.mktemp("bytes")
    try:
        dataset = opened(written(folder, GOOD + content))
    except DataError:
        return
    finally:
        shutil.rmtree(folder)
    assert dataset.num_rows >= 1


@pytest.mark.parametrize("content", [b"", b"\n \n\r\n"], ids=["empty", "blank"])
def test_a_file_without_rows_is_refused(tmp_path, content):
    """Nothing to train on."""
    with pytest.raises(DataError, match="holds no rows"):
        opened(written(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path):
    """By its path as the job says it."""
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        opened(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("content", [None, GOOD], ids=["gone", "shrunk"])
def test_rows_stay_as_they_were_at_opening(tmp_path, content):
    """The texts were read then. Another opening reads the file again."""
    path = written(tmp_path, GOOD + b'{"text": "second"}\n')
    dataset = opened(path)
    path.unlink() if content is None else path.write_bytes(content)
    assert all_rows(dataset) == [b"\0fine\0", b"\0second\0"]
    assert all_rows(pickle.loads(pickle.dumps(dataset))) == all_rows(dataset)


def test_the_fingerprint_knows_content_name_field_and_cut_but_not_the_place(tmp_path):
    """Equal for a copy elsewhere, another for anything else."""
    for name in ["one", "copy"]:
        (tmp_path / name).mkdir()
        written(tmp_path / name, GOOD)
    original = opened(tmp_path / "one").fingerprint
    assert opened(tmp_path / "copy").fingerprint == original
    (tmp_path / "copy" / "rows.jsonl").rename(tmp_path / "copy" / "other.jsonl")
    renamed = opened(tmp_path / "copy").fingerprint
    cut = opened(tmp_path / "one", context=4).fingerprint
    written(tmp_path / "one", GOOD.replace(b"fine", b"find"))
    assert len({original, renamed, cut, opened(tmp_path / "one").fingerprint}) == 4


@given(row=st.integers(0, 2**40), content=st.binary(min_size=2, max_size=30), change=st.integers(0, 239))
def test_the_checksum_knows_the_row_and_every_bit(row, content, change):
    """64 bits, another for another row number or any one bit of the tokens."""
    tokens = np.frombuffer(content, dtype=np.uint8).astype(np.int32)
    altered = tokens.copy()
    altered[change // 8 % len(altered)] ^= 1 << change % 8
    places = [(row, tokens), (row + 1, tokens), (row, altered)]
    sums = {sample_row_counts(row, Text.of(ids)).check_sum for row, ids in places}
    assert len(sums) == 3
    assert all(0 <= value < 2**64 for value in sums)


def test_a_long_index_tells_how_far_it_is(tmp_path, monkeypatch):
    """In bytes over all files, of where the row at hand begins."""
    monkeypatch.setattr("planner.data.prepare_tokens._CHUNK_BYTES", 1)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "x"}\n' * 2)
    heard = []
    data = JsonlData(kind="jsonl", path=str(tmp_path / "*.jsonl"))
    open_dataset(data, gpt(8), lambda *at: heard.append(at))
    assert heard == [(0, 56), (14, 56), (28, 56), (42, 56)]
