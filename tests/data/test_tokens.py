"""Token files: they have the rows of text and jsonl, are written atomically, and nothing else is taken for one."""

import json
import os
import pickle
import resource
from hashlib import sha256

import numpy as np
import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import all_bytes

from planner.data import prepare_tokens, tokens
from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.data.tokens import HEADER_BYTES, Header
from planner.errors import DataError, RunError, UserError
from planner.job import JsonlData, TextData, TokensData

WORDS = b"the quick brown fox jumps over the lazy dog\n"


def opened(path, context=4):
    return open_dataset(TokensData(kind="tokens", path=str(path)), gpt(context))


def all_rows(dataset):
    return [all_bytes(dataset.sample(row)) for row in range(dataset.num_rows)]


def text(folder, *contents):
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number:03d}.txt").write_bytes(content)
    return TextData(kind="text", path=str(folder))


def jsonl(folder, *texts):
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(texts):
        lines = [json.dumps({"body": row}) for row in rows]
        (folder / f"{number:03d}.jsonl").write_text("\n \n".join(lines))
    return JsonlData(kind="jsonl", path=str(folder), field="body")


@pytest.fixture
def stream(tmp_path):
    """A prepared stream of 440 bytes and an end mark."""
    prepare(text(tmp_path / "text", WORDS * 10), tmp_path / "stream")
    return tmp_path / "stream"


@pytest.fixture
def rows(tmp_path):
    """Prepared rows of 2 to 51 tokens."""
    prepare(jsonl(tmp_path / "rows-source", ["x" * n for n in range(50)]), tmp_path / "rows")
    return tmp_path / "rows"


# -- the same rows


@given(
    contents=st.lists(st.binary(max_size=9), min_size=1, max_size=6).filter(lambda c: sum(map(len, c)) >= 2),
    contexts=st.lists(st.integers(1, 60), min_size=1, max_size=3),
)
def test_a_stream_has_the_rows_of_its_text(tmp_path_factory, contents, contexts):
    """One file, any context: as many rows, each with the same bytes, of any files, empty ones among them."""
    folder = tmp_path_factory.mktemp("stream")
    source = text(folder / "source", *contents)
    header = prepare(source, folder / "tokens")
    assert header.num_tokens == sum(map(len, contents)) + len(contents)
    for context in contexts:
        tokens = opened(folder / "tokens", context)
        assert all_rows(tokens) == all_rows(open_dataset(source, gpt(context)))
        assert tokens.sample(0).inputs.dtype == np.int32


@given(
    texts=st.lists(st.lists(st.text(max_size=20), max_size=5), min_size=1, max_size=4).filter(any),
    contexts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_prepared_rows_are_those_of_the_jsonl(tmp_path_factory, texts, contexts):
    """One file, any context: the rows are kept whole and cut when they are read. Blank lines are none."""
    folder = tmp_path_factory.mktemp("rows")
    source = jsonl(folder / "source", *texts)
    header = prepare(source, folder / "tokens")
    assert header.num_rows == sum(map(len, texts))
    for context in contexts:
        assert all_rows(opened(folder / "tokens", context)) == all_rows(open_dataset(source, gpt(context)))


def test_a_text_larger_than_a_chunk_and_progress(tmp_path, monkeypatch):
    """Read in pieces, the stream is the same. Progress grows to the end of the source, but not with every piece."""
    monkeypatch.setattr(prepare_tokens, "_CHUNK_BYTES", 100)
    source = text(tmp_path / "source", WORDS * 7, b"", WORDS * 20)
    told = []
    prepare(source, tmp_path / "tokens", progress=lambda done, of: told.append((done, of)))
    assert all_rows(opened(tmp_path / "tokens", 1000)) == all_rows(open_dataset(source, gpt(1000)))
    assert told == sorted(told)
    assert 8 <= len(told) <= 12
    assert {of for _, of in told} == {27 * len(WORDS)}


# -- the file


def test_a_copy_elsewhere_is_the_same_data_and_another_cut_is_not(tmp_path, stream, rows):
    """The fingerprint depends on content and context, not on the place of the file."""
    (tmp_path / "copy").write_bytes(stream.read_bytes())
    assert opened(tmp_path / "copy").fingerprint == opened(stream).fingerprint
    prepare(text(tmp_path / "other", WORDS * 9 + WORDS.upper()), tmp_path / "altered")
    others = [opened(stream, 5), opened(rows), opened(tmp_path / "altered")]
    assert len({opened(stream).fingerprint, *(other.fingerprint for other in others)}) == 4


def test_the_digest_is_of_all_behind_the_header(rows):
    """Anyone can take it again."""
    assert sha256(rows.read_bytes()[HEADER_BYTES:]).hexdigest() == opened(rows).source.header.sha256


@pytest.mark.parametrize("name", ["stream", "rows"])
def test_another_process_maps_the_file_itself(request, name):
    """A pickle has the path, not the data. On opening, the data must be unchanged."""
    file = request.getfixturevalue(name)
    dataset = opened(file)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 600
    assert all_rows(pickle.loads(pickled)) == all_rows(dataset)
    prepare(text(file.parent / "else", b"something else"), file, replace=True)
    with pytest.raises(DataError, match="was replaced"):
        pickle.loads(pickled)
    assert len(all_rows(dataset)) == dataset.num_rows  # the old file lives on for who has it open


@given(data=st.data())
def test_any_byte_of_a_header_altered_is_refused(tmp_path_factory, data):
    """Padding, too."""
    file = _prepared_once(tmp_path_factory)
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, HEADER_BYTES - 1))] ^= data.draw(st.integers(1, 255))
    altered = file.with_name("altered")
    altered.write_bytes(content)
    with pytest.raises(DataError, match=r"altered( is not a token file|: its header is torn or altered)"):
        opened(altered)


@given(cut=st.integers(0, 10_000), more=st.binary(max_size=10))
def test_a_file_of_another_length_is_refused(tmp_path_factory, cut, more):
    """Torn anywhere, or with something behind its end."""
    file = _prepared_once(tmp_path_factory)
    content = file.read_bytes()
    if (torn := content[:cut] + more) == content:
        return
    altered = file.with_name("torn")
    altered.write_bytes(torn)
    with pytest.raises(DataError, match=r"torn.*(is not a token file|header is torn|an incomplete copy|was altered)"):
        opened(altered)


def _prepared_once(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "prepared-once"
    if not folder.exists():
        folder.mkdir()
        prepare(jsonl(folder / "source", ["abc", "", "defgh" * 100]), folder / "tokens")
    return folder / "tokens"


@pytest.mark.parametrize("place", [HEADER_BYTES, -1])
def test_altered_content_is_refused_at_once(stream, place):
    """The first and the last block are always checked. Of a file this small, all blocks are."""
    content = bytearray(stream.read_bytes())
    content[place] ^= 1
    stream.write_bytes(content)
    with pytest.raises(DataError, match="its content was altered after it was prepared"):
        opened(stream)


def rewritten(file, **changes):
    """Give the file another header, sealed as any."""
    header = Header(**{**opened(file).source.header.__dict__, **changes})
    file.write_bytes(header.encode() + file.read_bytes()[HEADER_BYTES:])


def sealed(file):
    """The header as JSON."""
    return json.loads(file.read_bytes()[len(tokens._MAGIC) + 64 : HEADER_BYTES])


def seal(file, value):
    """Write a header."""
    rest = b" " + json.dumps(value).encode().ljust(HEADER_BYTES - len(tokens._MAGIC) - 64 - 2) + b"\n"
    head = tokens._MAGIC + sha256(rest).hexdigest().encode() + rest
    file.write_bytes(head + file.read_bytes()[HEADER_BYTES:])


def test_a_newer_format_is_named(stream):
    """A whole file that this version cannot read."""
    rewritten(stream, format=3)
    with pytest.raises(DataError, match=r"written by another version of planner \(format 3, this one reads 1 and 2\)"):
        opened(stream)


@pytest.mark.parametrize("name", ["stream", "rows"])
def test_a_file_of_format_1_has_the_same_rows(request, name):
    """As planner wrote it before tokenizers: four values fewer. A run that used it goes on, as its data is the same."""
    file = request.getfixturevalue(name)
    rows, fingerprint = all_rows(opened(file)), opened(file).fingerprint
    value = {**sealed(file), "format": 1}
    seal(file, {key: value[key] for key in value if key not in {"tokenizer", "vocabulary", "num_empty"}})
    assert opened(file).source.header.format == 1
    assert (all_rows(opened(file)), opened(file).fingerprint) == (rows, fingerprint)


def test_a_file_of_another_kind_is_refused(tmp_path, stream):
    """Text, nothing, a folder of two. Each is named."""
    (tmp_path / "empty").write_bytes(b"")
    for name in ["text/000.txt", "empty"]:
        with pytest.raises(DataError, match=rf"{name} is not a token file\. Make one with `planner prepare`"):
            opened(tmp_path / name)
    with pytest.raises(DataError, match=r"names 2 files\. Write the one"):
        opened(text(tmp_path / "two", b"a", b"b").path)
    with pytest.raises(DataError, match="no file at"):
        opened(stream.with_name("missing"))


def test_a_file_that_shrinks_under_a_run_is_refused(stream):
    """To touch a page that is gone would kill the process."""
    dataset = opened(stream)
    os.truncate(stream, HEADER_BYTES)
    with pytest.raises(DataError, match="has changed while the run was reading it"):
        dataset.sample(0)


def test_a_table_of_rows_altered_where_nobody_looked_is_noticed(rows):
    """Not every block is checked at opening. An impossible row is refused when it is read."""
    dataset = opened(rows)
    with rows.open("r+b") as stream:
        stream.seek(dataset.source.header.starts_at + 8 * 7)
        stream.write((10**9).to_bytes(8, "little"))
    assert all_bytes(dataset.sample(5)) == b"\0xxxx"
    with pytest.raises(DataError, match="altered at row 7"):
        dataset.sample(7)


# -- whole or not at all


@pytest.mark.parametrize("free_bytes", [0, 3000, 4200, 4367])
def test_a_full_disk_leaves_nothing_and_says_so(tmp_path, free_bytes):
    """Wherever it fills up: in the header, in the tokens, one byte before the end."""
    source = jsonl(tmp_path / "source", ["abc"] * 20)  # 4096 bytes of header, 104 of tokens, 168 of rows
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
    try:
        with pytest.raises(RunError, match=r"cannot write .*tokens: File too large\. No partial file remains"):
            prepare(source, tmp_path / "tokens")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


@pytest.mark.process
def test_a_disk_without_room_is_said_with_the_sizes(tmp_path, small_disk):
    """Two megabytes onto a disk of one. What was written is removed, and counts as free."""
    source = jsonl(tmp_path / "source", ["abc" * 1000] * 700)
    with pytest.raises(RunError, match=r"the disk is full: it needs 2\.1 MB, and 1\.0 MB are free\. No partial file"):
        prepare(source, small_disk / "tokens")
    assert list(small_disk.iterdir()) == []


def test_a_mistake_on_the_way_leaves_nothing(tmp_path):
    """Nor does it harm what was there before."""
    source = jsonl(tmp_path / "source", ["abc"])
    prepare(source, tmp_path / "tokens")
    before = (tmp_path / "tokens").read_bytes()
    (tmp_path / "source" / "zzz.jsonl").write_text('{"body": 7}\n')
    with pytest.raises(DataError, match=r"zzz\.jsonl:1: no text under 'body'"):
        prepare(source, tmp_path / "tokens", replace=True)
    assert (tmp_path / "tokens").read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "tokens"}


def test_what_is_there_is_replaced_only_when_asked(tmp_path, stream):
    """By another file, not in place."""
    source = text(tmp_path / "text2", b"other")
    with pytest.raises(UserError, match=r"exists already\. Choose another name, or replace it with --force"):
        prepare(source, stream)
    prepare(source, stream, replace=True)
    assert all_rows(opened(stream, 100)) == [b"other\0"]


def test_the_umask_decides_who_can_read_the_file(stream):
    """Other users may read it as they may read the source."""
    mask = os.umask(0)
    os.umask(mask)
    assert stream.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("name", ["source/inside", "source/new/inside"])
def test_output_among_the_source_is_refused(tmp_path, name):
    """The next time it would be read as text."""
    source = text(tmp_path / "source", WORDS)
    (tmp_path / "source" / "new").mkdir()
    with pytest.raises(UserError, match="would count as source"):
        prepare(source, tmp_path / name)


def test_a_source_is_not_replaced_by_its_own_tokens(tmp_path):
    """Named as a file, by whatever path."""
    text(tmp_path / "source", WORDS)
    source = TextData(kind="text", path=f"{tmp_path}/source/*.txt")
    with pytest.raises(UserError, match="would count as source"):
        prepare(source, tmp_path / "source" / ".." / "source" / "000.txt", replace=True)


@pytest.mark.parametrize("source", [b"", b"x"])
def test_too_little_text_is_refused(tmp_path, source):
    """As the text kind does."""
    with pytest.raises(DataError, match="holds no text"):
        prepare(text(tmp_path / "source", source), tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_no_rows_are_refused(tmp_path):
    """As the jsonl kind does."""
    with pytest.raises(DataError, match="holds no rows"):
        prepare(jsonl(tmp_path / "source", []), tmp_path / "tokens")


def test_a_source_that_shrinks_meanwhile_is_refused(tmp_path, monkeypatch):
    """The tokens would be of two different corpora."""
    source = text(tmp_path / "source", WORDS, WORDS)
    stamps = prepare_tokens.source_stamps

    def larger(path):
        return tuple((name, size + 1, time) for name, size, time in stamps(path))

    monkeypatch.setattr(prepare_tokens, "source_stamps", larger)
    with pytest.raises(DataError, match="has changed while it was read"):
        prepare(source, tmp_path / "tokens")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "zzz"},
        {"kind": ["rows"]},
        {"dtype": 8},
        {"dtype": "uint64"},
        {"dtype": "uint16"},
        {"tokenizer": "0" * 64},
        {"tokenizer": 7},
        {"vocabulary": -1},
        {"num_empty": None},
        {"num_tokens": "5"},
        {"num_tokens": True},
        {"num_rows": -1},
        {"num_rows": False},
        {"sha256": None},
        {"sha256": "e" * 63},
        {"blocks_sha256": None},
        {"extra": 1},
        None,
        [1],
    ],
    ids=str,
)
def test_a_sealed_header_that_says_nonsense_is_refused(tmp_path, change):
    """The seal shows that nothing was altered, not that it makes sense."""
    file = tmp_path / "x.tokens"
    (tmp_path / "x.txt").write_text("abcdef" * 100)
    prepare(TextData(kind="text", path=str(tmp_path / "x.txt")), file)
    seal(file, {**sealed(file), **change} if isinstance(change, dict) else change)
    with pytest.raises(DataError, match="not one that planner writes"):
        opened(file)


@pytest.mark.parametrize("found", [True, 1.0, "1", None])
def test_a_format_is_a_whole_number(stream, found):
    """In Python true is 1, and 1.0 is, too."""
    rewritten(stream, format=found)
    with pytest.raises(DataError, match=r"written (by another version|before formats had numbers)"):
        opened(stream)
