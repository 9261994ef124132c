"""Text as rows: what is found, how it is cut, what a fingerprint notices."""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import all_bytes

from planner.data.open import open_dataset
from planner.data.paths import STDLIB, absolute, content_fingerprint, resolve
from planner.errors import DataError
from planner.job import TextData


def write(folder, **contents):
    """Files a.txt, b.txt... with these bytes. The folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def opened(path, context=4):
    return open_dataset(TextData(kind="text", path=str(path)), gpt(context))


def all_rows(dataset):
    return [all_bytes(dataset.sample(row)) for row in range(dataset.num_rows)]


def test_rows_of_a_small_corpus_by_hand(tmp_path):
    """Two files of 5 and 3 bytes at context 4: each row has one byte more than its inputs, the last is shorter."""
    dataset = opened(write(tmp_path, a=b"abcde", b=b"xyz"))
    assert all_rows(dataset) == [b"abcde", b"e\0xyz", b"z\0"]
    assert dataset.num_rows == 3


files = st.lists(st.binary(max_size=9), min_size=1, max_size=6).filter(lambda parts: sum(map(len, parts)) >= 2)


@given(parts=files, context=st.integers(1, 12))
def test_rows_tile_the_corpus(tmp_path_factory, parts, context):
    """Inputs joined are all bytes but the last, labels joined all but the first. Only the last row is shorter."""
    folder = write(tmp_path_factory.mktemp("tile"), **{f"{i:02d}": part for i, part in enumerate(parts)})
    corpus = b"".join(part + b"\0" for part in parts)
    rows = all_rows(opened(folder, context))
    assert b"".join(row[:-1] for row in rows) == corpus[:-1]
    assert b"".join(row[1:] for row in rows) == corpus[1:]
    assert all(len(row) == context + 1 for row in rows[:-1])
    assert 2 <= len(rows[-1]) <= context + 1
    shutil.rmtree(folder)


def test_rows_are_read_in_any_order(tmp_path):
    """A row does not depend on the rows read before it."""
    dataset = opened(write(tmp_path, a=b"0123456", b=b"", c=b"7", d=b"89abcdef"), context=3)
    forward = all_rows(dataset)
    assert [all_bytes(dataset.sample(row)) for row in reversed(range(dataset.num_rows))] == forward[::-1]


def test_empty_files_and_one_byte_files_inside_one_row(tmp_path):
    """A row may run through many files. An empty one leaves only its end mark."""
    dataset = opened(write(tmp_path, a=b"", b=b"1", c=b"", d=b"", e=b"2"), context=50)
    assert all_rows(dataset) == [b"\x001\0\0\x002\0"]


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "one byte"])
def test_a_corpus_without_two_bytes_is_refused(tmp_path, content):
    """There would be nothing to predict."""
    with pytest.raises(DataError, match="at least two bytes"):
        opened(write(tmp_path, a=content))


def test_two_bytes_are_enough(tmp_path):
    """In one file, or in two of one byte."""
    assert all_rows(opened(write(tmp_path / "one", a=b"xy"))) == [b"xy\0"]
    assert all_rows(opened(write(tmp_path / "two", a=b"x", b=b"y"))) == [b"x\0y\0"]


# -- what a path may be


def test_a_device_is_not_said_to_be_missing():
    with pytest.raises(DataError, match=r"data\.path: cannot read /dev/zero: a pipe or a device, not a regular file"):
        resolve("/dev/zero")


def test_a_file_a_folder_and_a_glob_find_the_same(tmp_path):
    """One file is found by its name, by its folder and by a pattern, wherever the wildcard stands."""
    write(tmp_path / "deep" / "er", a=b"hello")
    paths = [tmp_path / "deep/er/a.txt", tmp_path, tmp_path / "*/er/*.txt", tmp_path / "**/*.txt"]
    found = [resolve(str(path))[1] for path in paths]
    assert found == [[tmp_path / "deep/er/a.txt"]] * 4


def test_a_folder_is_read_in_the_order_of_relative_names(tmp_path):
    """Not in the order of the disk."""
    write(tmp_path / "b", z=b"3")
    write(tmp_path, c=b"4", a=b"1")
    write(tmp_path / "a-", q=b"2")
    assert all_rows(opened(tmp_path, 50)) == [b"2\0" + b"1\0" + b"3\0" + b"4\0"]


def test_a_relative_path_is_meant_from_the_working_directory(tmp_path, monkeypatch):
    """And `absolute` says the same for a process elsewhere."""
    write(tmp_path / "here", a=b"hello")
    monkeypatch.chdir(tmp_path)
    everywhere = {path: absolute(path) for path in ["here", "here/a.txt", "here/*.txt", STDLIB]}
    assert opened("here").fingerprint == opened("here/*.txt").fingerprint
    monkeypatch.chdir("/")
    assert everywhere.pop(STDLIB) == STDLIB
    for path in everywhere.values():
        assert all_rows(opened(path, 50)) == [b"hello\0"]


def test_the_standard_library_is_its_own_source():
    """Known modules are there, tests and installed packages are not. It opens without a path."""
    root, found = resolve(STDLIB)
    names = {file.relative_to(root).as_posix() for file in found}
    assert root == Path(sysconfig.get_paths()["stdlib"])
    assert {"json/decoder.py", "os.py"} <= names
    forbidden = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    assert not any(forbidden.intersection(Path(name).parts) for name in names)
    dataset = opened(STDLIB, 256)
    assert dataset.num_rows > 10_000
    assert dataset.sample(dataset.num_rows // 2).inputs.shape == (256,)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("nothing-here", id="missing"),
        pytest.param("nothing/*.txt", id="glob in a missing folder"),
        pytest.param("*.none", id="glob without a match"),
        pytest.param("**.txt", id="malformed glob"),
        pytest.param("[", id="open bracket"),
        pytest.param("x" * 5000, id="too long for the system"),
        pytest.param("a\0b", id="NUL"),
        pytest.param("empty", id="empty folder"),
        pytest.param("a.txt/b", id="below a file"),
    ],
)
def test_a_path_without_files_is_refused(tmp_path, path):
    """As a sentence for the user, never as the system's own error."""
    write(tmp_path, a=b"hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"^data\.path: "):
        opened(f"{tmp_path}/{path}")


def test_a_name_that_is_not_utf8_is_a_name(tmp_path):
    """Linux names are bytes."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_bytes(b"hello")
    assert all_rows(opened(tmp_path)) == [b"hello", b"o\0"]


# -- files that change under a run


@pytest.mark.parametrize("harm", ["shrunk", "gone"])
def test_a_file_that_changed_after_opening_is_refused(tmp_path, harm):
    """A shrunk or deleted file is named. Rows of the other files are still read."""
    write(tmp_path, a=b"01234567", b=b"abcdefgh")
    dataset = opened(tmp_path, 4)
    whole = all_rows(dataset)
    if harm == "gone":
        (tmp_path / "b.txt").unlink()
    else:
        (tmp_path / "b.txt").write_bytes(b"abcdefg")
    assert all_bytes(dataset.sample(0)) == whole[0]
    with pytest.raises(DataError, match=r"b\.txt"):
        dataset.sample(3)


def test_a_file_that_grew_keeps_its_rows(tmp_path):
    """What was appended after opening is not read: it would move every later row."""
    write(tmp_path, a=b"0123456", b=b"abc")
    dataset = opened(tmp_path, 3)
    before = all_rows(dataset)
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    assert all_rows(dataset) == before


# -- the fingerprint


def test_the_fingerprint_knows_content_names_and_cut_but_not_the_place(tmp_path):
    """Equal for a copy elsewhere. Another for another byte, name, file boundary or context."""
    original = opened(write(tmp_path / "one", a=b"hello", b=b"world"))
    assert opened(write(tmp_path / "far" / "copy", a=b"hello", b=b"world")).fingerprint == original.fingerprint
    others = [
        opened(write(tmp_path / "byte", a=b"hellp", b=b"world")),
        opened(write(tmp_path / "name", a=b"hello", c=b"world")),
        opened(write(tmp_path / "cut", a=b"hellow", b=b"orld")),
        opened(write(tmp_path / "more", a=b"hello", b=b"world", c=b"")),
        opened(tmp_path / "one", context=5),
    ]
    assert len({original.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert all(len(other.fingerprint) == 64 for other in others)


@given(content=st.binary(min_size=2, max_size=60), where=st.integers(0, 59), change=st.integers(1, 255))
def test_the_fingerprint_knows_every_byte(tmp_path_factory, content, where, change):
    """Any single byte changed is another data set."""
    folder = tmp_path_factory.mktemp("byte")
    before = opened(write(folder, a=content)).fingerprint
    altered = bytearray(content)
    altered[where % len(content)] ^= change
    assert opened(write(folder, a=bytes(altered))).fingerprint != before
    shutil.rmtree(folder)


def test_a_file_that_vanishes_while_it_is_fingerprinted_is_named(tmp_path):
    """As a DataError."""
    with pytest.raises(DataError, match=r"gone\.txt"):
        content_fingerprint(tmp_path, [tmp_path / "gone.txt"], "text")
