"""A place is tried on small files before a run begins there, and is left as it was."""

import errno
import os
import re

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from planner.errors import DiskFull, StoreError
from planner.store.run_place import require_run_place
from planner.store.storage import Storage


class Bucket(DirFileSystem):
    """A remote file system in a folder of this machine. Its methods are replaced by those that a store lacks."""

    def _unlike(self, **methods):
        for name, method in methods.items():
            setattr(self, name, method)
        return self


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Returns a storage whose file system has these methods in place of its own."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    (folder / "mine").write_text("here before")

    def make(**methods):
        found = Bucket(path=str(folder), fs=LocalFileSystem(auto_mkdir=True), skip_instance_cache=True)
        monkeypatch.setattr("fsspec.core.url_to_fs", lambda _url: (found._unlike(**methods), "run"))
        return Storage("odd://run")

    return make


def names_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_good_place_is_left_as_it_was(tmp_path):
    """Folders above it, too."""
    require_run_place(Storage(str(tmp_path / "a" / "b" / "run")))
    assert names_below(tmp_path) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("x")
    before = names_below(tmp_path)
    require_run_place(Storage(f"file://{tmp_path}/run"))
    assert names_below(tmp_path) == before


def test_a_good_store_is_left_as_it_was(bucket, tmp_path):
    """As a folder of this machine."""
    require_run_place(bucket())
    assert [path.name for path in (tmp_path / "bucket").rglob("*") if path.is_file()] == ["mine"]


def test_a_dead_link_is_named(tmp_path):
    """Listing it says that nothing is there, and making it says that something is."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for run in ("link", "link/run"):
        with pytest.raises(StoreError, match=rf"^checkpoint.path: {tmp_path}/link is not a folder"):
            require_run_place(Storage(str(tmp_path / run)))


def test_a_file_in_the_place_of_a_folder_of_the_run_is_named(tmp_path):
    (tmp_path / "held").write_text("x")
    with pytest.raises(StoreError, match=r": held is no folder there, and the run would need one\. Choose another"):
        require_run_place(Storage(str(tmp_path)))
    assert names_below(tmp_path) == ["held"]


def test_memory_holds_no_run():
    """It works in one process, so no operation shows it."""
    with pytest.raises(
        StoreError, match=r"^memory://x: each process has a memory:// of its own, .* Set checkpoint\.path"
    ):
        require_run_place(Storage("memory://x"))


def refuse(number, *, of_two=False):
    """An operation that fails like a system call. With `of_two`, like one that gets two paths."""

    def refused(*_paths, **_settings):
        raise OSError(number, os.strerror(number), "a", *([None, "b"] if of_two else []))

    return refused


@pytest.mark.parametrize(
    ("call", "number", "says"),
    [
        ("os.link", errno.EPERM, "cannot make a hard link to a file there (Operation not permitted)"),
        ("pathlib.Path.replace", errno.EPERM, "cannot rename a file there (Operation not permitted)"),
        ("pathlib.Path.mkdir", errno.EROFS, "cannot write there (Read-only file system)"),
        ("planner.store.storage.sync_folder", errno.EIO, "cannot write there (Input/output error)"),
        ("os.fsync", errno.EIO, "cannot write there (Input/output error)"),
    ],
)
def test_the_operation_that_a_folder_refuses_is_named(tmp_path, monkeypatch, call, number, says):
    """FAT and some mounts have no hard links. What was made goes again."""
    monkeypatch.setattr(call, refuse(number, of_two=number == errno.EPERM))
    url = f"{tmp_path}/above/run"
    with pytest.raises(StoreError) as raised:
        require_run_place(Storage(url))
    assert str(raised.value) == f"{url}: {says}. Choose another checkpoint.path"
    assert names_below(tmp_path) == []


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.mkdir"])
def test_a_full_disk_has_an_error_of_its_own(tmp_path, monkeypatch, call):
    """What to do differs: make room."""
    monkeypatch.setattr(call, refuse(errno.ENOSPC))
    with pytest.raises(DiskFull, match=r"is full: a small file needs 4\.1 kB, and .* are free\. Make room there"):
        require_run_place(Storage(f"{tmp_path}/run"))
    assert names_below(tmp_path) == []


def raising(error):
    def raise_it(*_arguments, **_settings):
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({"pipe_file": raising(NotImplementedError())}, "cannot write there (its file system has no such operation)"),
        ({"pipe_file": raising(KeyError("no credentials\nfound"))}, "cannot write there ('no credentials\\nfound')"),
        ({"open": raising(ValueError("mode 'ab'"))}, "cannot append to a file there (mode 'ab')"),
        ({"cat_file": raising(PermissionError(13, "Forbidden"))}, "cannot read there (Forbidden)"),
        ({"rm": raising(PermissionError(13, "Forbidden"))}, "cannot remove PROBE there (Forbidden)"),
        ({"rm": lambda *_paths, **_settings: None}, "its file system does not remove files, so it can hold no run"),
        ({"ls": lambda *_paths, **_settings: []}, "its file system does not list files, so it can hold no run"),
    ],
)
def test_what_a_store_refuses_or_does_otherwise_is_named(bucket, methods, says):
    """A package's file system may raise anything."""
    with pytest.raises(StoreError) as raised:
        require_run_place(bucket(**methods))
    found = re.sub("probe-[0-9a-f]{32}", "PROBE", str(raised.value))
    assert found == f"odd://run: {says}. Choose another checkpoint.path"


def test_a_store_without_put_if_absent_holds_no_run(bucket, tmp_path):
    """Two drivers would both get the run's lease."""
    put = LocalFileSystem(auto_mkdir=True).pipe_file
    folder = tmp_path / "bucket"
    storage = bucket(pipe_file=lambda path, content, **_mode: put(f"{folder}/{path}", content))
    with pytest.raises(StoreError, match="writes over a file that must only be made once"):
        require_run_place(storage)
    assert not fsspec.filesystem("file").glob(f"{folder}/run/probe-*/*")


def test_a_store_that_appends_by_writing_anew_holds_no_run(bucket, tmp_path):
    """The ledger would have its last line alone."""
    folder = tmp_path / "bucket"
    files = LocalFileSystem(auto_mkdir=True)
    storage = bucket(open=lambda path, mode: files.open(f"{folder}/{path}", mode.replace("a", "w")))
    with pytest.raises(StoreError, match="does not append to a file"):
        require_run_place(storage)


@pytest.mark.parametrize("protocol", [("gs", "gcs"), ("abfs", "az"), "gs"])
def test_stores_that_cannot_append_hold_a_run(bucket, tmp_path, protocol):
    """Google's and Azure's. gcsfs takes "ab" for "wb", so a ledger lost all lines but the last ones."""
    folder = tmp_path / "bucket"
    files = LocalFileSystem(auto_mkdir=True)
    storage = bucket(protocol=protocol, open=lambda path, mode: files.open(f"{folder}/{path}", mode.replace("a", "w")))
    require_run_place(storage)
    for line in (b"one\n", b"two\n", b"three\n"):
        storage.append("ledger/000001.jsonl", line)
    assert storage.read("ledger/000001.jsonl") == b"one\ntwo\nthree\n"


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    """In the midst of the probe."""
    monkeypatch.setattr("os.link", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        require_run_place(Storage(f"{tmp_path}/above/run"))
    assert names_below(tmp_path) == []


def test_what_another_process_has_put_there_meanwhile_stays(tmp_path, monkeypatch):
    """A real start of the same run, for example."""
    run = tmp_path / "above" / "run"
    link = os.link

    def also(source, target):
        (run / "run.json").write_text("x")
        link(source, target)

    monkeypatch.setattr("os.link", also)
    require_run_place(Storage(str(run)))
    assert names_below(tmp_path) == ["above", "above/run", "above/run/run.json"]
