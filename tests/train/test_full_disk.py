"""A disk that fills up: one sentence with the sizes, and the last commit is whole."""

import errno
import re
import subprocess
from contextlib import contextmanager, suppress

import pytest
import torch

from planner.base.disk import no_room, size_text
from planner.errors import DiskFull, RunError
from planner.job import Job
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage
from planner.train.checkpoints import tensor_writer
from planner.train.export import tensor_files
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def job(tmp_path):
    """One with commits of half a megabyte, of which two are kept."""
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    return Job.model_validate(
        {
            "name": "test",
            "model": {"kind": "gpt", "layers": 1, "width": 48, "heads": 1, "context": 8},
            "data": {"kind": "text", "path": str(tmp_path / "corpus.txt")},
            "batch": {"global": 5, "max_micro": 2},
            "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1, "keep": 2},
        }
    )


def refused(job, url):
    with pytest.raises(DiskFull) as stopped:
        train(Launch(job=job, url=url), cpu_device, Hooks())
    return str(stopped.value)


def finish(job, url):
    assert train(Launch(job=job, url=url), cpu_device, Hooks()).finished
    result = audit(RunFolder(Storage(url)))
    assert result.clean, result.findings


@pytest.mark.process
def test_a_commit_that_does_not_fit_leaves_the_last_one_and_says_what_it_needs(job, small_disk):
    """The first commit fits, the second does not: its files go, and with room the same job ends."""
    url = str(small_disk / "run")
    said = refused(job, url)
    needed, free = re.search(
        r"^step 2 cannot be committed \(last commit: step 1\): .*/run: the disk is full: a commit needs (.+) kB, "
        r"and (.+) kB are free. Make room there, then run the same command again$",
        said,
    ).groups()
    assert 0 < float(free) < float(needed)
    storage = Storage(url)
    assert storage.names("checkpoints") == [commit_name(1, 1)]
    assert RunFolder(storage).commits() == [commit_name(1, 1)]
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    finish(job, url)


@pytest.mark.process
def test_a_ledger_that_cannot_be_written_says_so_and_is_resumed(job, small_disk):
    """Another program takes all room between two steps; when it has gone, the same job ends."""
    url = str(small_disk / "run")
    hog = small_disk / "hog"

    def fill(_step):
        with suppress(OSError), hog.open("wb", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass
        return False

    with pytest.raises(DiskFull, match=r"the disk is full: .* needs .* are free"):
        train(Launch(job=job, url=url), cpu_device, Hooks(should_stop=fill))
    hog.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    finish(job, url)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_torch_raises_over_a_full_disk_is_not_what_is_said(job, tmp_path, monkeypatch, number):
    """`[enforce fail at inline_container.cc:672] . unexpected pos`: on any disk, in any file, without root."""
    url = str(tmp_path / "run")
    opened = tensor_writer._PrivateFiles.create_stream
    files = []

    class Full:
        """A stream that takes a thousand bytes, as the raw stream below torch's writer sees them."""

        def __init__(self, stream):
            self._stream, self._left = stream, 1000

        def __getattr__(self, name):
            return getattr(self._stream, name)

        def write(self, content):
            self._left -= len(content)
            if self._left < 0:
                raise OSError(number, "no room, says the test")
            return self._stream.write(content)

    @contextmanager
    def create_stream(self, path, mode):
        files.append(path)
        with opened(self, path, mode) as stream:
            yield Full(stream) if len(files) > 2 else stream  # the first commit is its tensors and .metadata

    monkeypatch.setattr(tensor_writer._PrivateFiles, "create_stream", create_stream)
    said = refused(job, url)
    assert said.startswith("step 2 cannot be committed (last commit: step 1): ")
    assert {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}[number] in said
    assert "unexpected pos" not in said
    monkeypatch.undo()
    finish(job, url)


@pytest.mark.process
def test_an_export_that_does_not_fit_says_how_much_it_needs(small_disk):
    """A model of 2 MB; nothing of it stays."""
    planned = dict.fromkeys("ab", (250_000,))
    tensors = (torch.zeros(shape) for shape in planned.values())
    with pytest.raises(RunError, match=r"the disk is full: the model needs 2\.0 MB, and 1\.0 MB are free\. Nothing"):
        tensor_files.write(small_disk, "model", planned, tensors, torch.float32, {})
    assert list(small_disk.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize("write", ["write", "create", "append"])
def test_a_store_without_room_says_how_much_is_needed(small_disk, write):
    """Manifests, claims, the ledger, the reference's log-probabilities: all of them go through these three."""
    storage = Storage(str(small_disk))
    with pytest.raises(DiskFull, match=r"the disk is full: part/0 needs 2\.0 MB, and .* are free\. Make room there"):
        getattr(storage, write)("part/0", bytes(2_000_000))


def test_a_full_disk_is_found_below_other_errors():
    """As a cause, as a context; and nothing else is taken for one."""
    full, above = OSError(errno.ENOSPC, "full"), RuntimeError("unexpected pos 704 vs 598")
    above.__context__ = full
    assert no_room(above) is full
    assert no_room(RuntimeError("unexpected pos")) is None
    assert no_room(PermissionError(errno.EPERM, "no")) is None


def test_sizes_read_like_a_disk_s_label():
    assert [size_text(n) for n in (0, 999, 1000, 1_250_000, 10**9, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.2 MB",
        "1.0 GB",
        "3.0 TB",
    ]
