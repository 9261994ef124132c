"""Files of a probe: they are written, read and removed, and nothing else at the path is touched."""

import contextlib
import subprocess
import threading

import pytest
from events import EVENT_S, wait_for

from planner.errors import DiskFull, RunError, StoreError
from planner.probe.storage import StorageProbe
from planner.store.storage import Storage


@pytest.fixture
def place(tmp_path):
    """A folder with a file and a folder of somebody else."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "1.json").write_text("{}")
    (tmp_path / "probe-other").mkdir()
    return tmp_path


def content_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_it_writes_and_reads_all_bytes_and_leaves_nothing(place):
    """At most one file of a node is there at a time."""
    before, probe = content_of(place), StorageProbe(str(place), "probe-1", "0")
    probe.open()
    for size in (1, 5_000_000, 12_345_678):
        move = probe.write(size, limit_s=EVENT_S)
        assert (move.num_bytes, probe.read(EVENT_S).num_bytes) == (size, size)
        assert move.seconds > 0
        (file,) = (place / "probe-1").glob("0-0*")
        assert file.stat().st_size == size
    assert probe.clean() == ""
    assert content_of(place) == before


def test_a_url_works_like_a_folder():
    """Through fsspec."""
    url = "memory://probed/runs"
    Storage(url).write("mine", b"here before")
    probe = StorageProbe(url, "probe-1", "0")
    probe.open()
    assert probe.free_bytes() == -1
    assert probe.write(3_000_000, EVENT_S).num_bytes == probe.read(EVENT_S).num_bytes == 3_000_000
    assert [len(seconds) for seconds in probe.small_files(3, EVENT_S)] == [3, 3]
    assert probe.clean() == ""
    assert Storage(url).names("") == ["mine"]


def test_a_write_ends_after_its_limit(place):
    """A file is a bit larger than nothing then."""
    probe = StorageProbe(str(place), "probe-1", "0")
    probe.open()
    assert 0 < probe.write(10**9, limit_s=0).num_bytes < 10**7
    assert 0 < probe.read(limit_s=0).num_bytes < 10**7
    assert [len(seconds) for seconds in probe.small_files(100, 0)] == [1, 1]
    assert probe.clean() == ""


def test_nodes_see_each_other_in_one_folder_alone(place):
    """By their marks."""
    probes = [StorageProbe(str(place), "probe-1", name) for name in "01"]
    for probe in probes:
        probe.open()
    elsewhere = StorageProbe(str(place / "manifests"), "probe-1", "2")
    elsewhere.open()
    assert probes[1].sees("0")
    assert not elsewhere.sees("0")
    assert [probe.clean() for probe in (*probes, elsewhere)] == ["", "", ""]


def test_nothing_is_written_after_it_was_cleaned(place):
    """Another thread may be in the middle of a transfer: it ends, and the folder goes."""
    before, probe = content_of(place), StorageProbe(str(place), "probe-1", "0")
    probe.open()
    ended = []

    def write():
        with contextlib.suppress(RunError):
            while True:
                probe.write(10**8, EVENT_S)
        ended.append(True)

    writer = threading.Thread(target=write)
    writer.start()
    wait_for(lambda: list((place / "probe-1").glob("0-0*")))
    assert probe.clean() == ""
    writer.join(EVENT_S)
    assert ended
    assert content_of(place) == before


def test_a_folder_that_is_missing_is_refused(place):
    """It is not made: a mount that is missing on a node would be measured as that node's own disk."""
    with pytest.raises(StoreError, match="gone: no such folder"):
        StorageProbe(str(place / "gone"), "probe-1", "0").open()
    with pytest.raises(StoreError, match="json: no such folder"):
        StorageProbe(str(place / "manifests" / "1.json"), "probe-1", "0").open()


@pytest.mark.process
def test_a_full_disk_says_so_and_is_as_full_as_before(small_disk):
    """While a large file and while a small one is written."""
    (small_disk / "hog").write_bytes(bytes(900_000))
    probe = StorageProbe(str(small_disk), "probe-1", "0")
    probe.open()
    with pytest.raises(DiskFull, match=r"the disk is full: a file of the probe needs 5.0 MB, and .* are free"):
        probe.write(5_000_000, EVENT_S)
    assert probe.clean() == ""
    with (small_disk / "hog").open("ab", buffering=0) as hog, contextlib.suppress(OSError):
        while True:
            hog.write(bytes(4096))
    with pytest.raises(DiskFull, match="Make room there"):
        StorageProbe(str(small_disk), "probe-2", "0").open()
    assert content_of(small_disk) <= {"hog", "probe-2"}


@pytest.mark.process
def test_a_folder_that_cannot_be_written_says_so(small_disk):
    """With the reason of the system."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="cannot be written to and read: Read-only file system"):
        StorageProbe(str(small_disk), "probe-1", "0").open()


def test_whatever_a_file_system_raises_is_one_line(place, monkeypatch):
    """Packages such as s3fs raise errors of their own. Only the first line is shown."""
    probe = StorageProbe(str(place), "probe-1", "0")

    def refuse(*_arguments):
        raise LookupError("no credentials\nlong explanation")

    monkeypatch.setattr(probe.storage, "write", refuse)
    with pytest.raises(StoreError, match=r"cannot be written to and read: no credentials\. Check the path"):
        probe.open()
    assert probe.clean() == ""
