"""A whole probe of several nodes, without Ray: each node is a `NodeProbe` of this process."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from events import EVENT_S

from planner.errors import DiskFull, StoreError
from planner.probe.devices import Copies
from planner.probe.figures import MB, Move
from planner.probe.measure import measure
from planner.probe.node import LOOPBACK, NodeProbe

TOKEN = b"t" * 32


class Here:
    """Nodes that are threads, each with a path of its own or all with one."""

    def __init__(self, *urls, folder="probe-1"):
        self.names = tuple("abc"[: len(urls)])
        self.addresses = (LOOPBACK,) * len(urls)
        self.probes = [
            NodeProbe(url=str(url), folder=folder, node=str(place), address=LOOPBACK, token=TOKEN)
            for place, url in enumerate(urls)
        ]
        self.gpus = [Copies(missing="no GPU") for _ in urls]

    def ask(self, method, arguments):
        with ThreadPoolExecutor(len(self.probes)) as threads:
            calls = [(getattr(self.probes[place], method.__name__), each) for place, each in arguments.items()]
            asked = [threads.submit(call, *each) for call, each in calls]
            return [each.result() for each in asked]

    def copies(self):
        return self.gpus

    def measure(self, **named):
        said = []
        try:
            return measure(self, "PATH", **{"size_bytes": MB, "say": said.append, **named}), said
        finally:
            assert [probe.clean() for probe in self.probes] == [""] * len(self.probes)


def whats(probed):
    return [figure.what for figure in probed.figures]


def test_one_node_measures_itself(tmp_path):
    """No network: bytes to itself, and it says so."""
    probed, said = Here(tmp_path).measure()
    assert whats(probed) == ["write", "read", "put if absent", "write a manifest", "loopback"]
    assert probed.together is probed.alone
    assert all(figure.where in {"a", "a -> itself"} for figure in probed.figures)
    assert probed.notes[-1] == "a: no GPU, so no copies were measured."  # another one may name a slow disk
    assert "writing, a" in said
    assert list(tmp_path.iterdir()) == []


def test_several_nodes_write_alone_and_at_once(tmp_path):
    """The sum of all is what a commit sees."""
    probed, _ = Here(tmp_path, tmp_path, tmp_path).measure()
    assert whats(probed)[4:] == ["write, all at once", "read, all at once", "network", "network, all at once"]
    assert probed.together.where == "3 nodes"
    assert probed.alone.where == "a alone"
    assert all(value > 0 for figure in probed.figures for value in figure.values)
    assert any("loopback" in note for note in probed.notes)
    assert list(tmp_path.iterdir()) == []


def test_the_sum_counts_the_slowest_node(tmp_path, monkeypatch):
    """And that node is named."""
    here = Here(tmp_path, tmp_path, tmp_path)
    for probe, seconds in zip(here.probes, (1, 1, 10), strict=True):
        monkeypatch.setattr(
            probe,
            "write",
            lambda size, _limit_s, seconds=seconds, write=probe.write: Move(
                num_bytes=write(size, EVENT_S).num_bytes, seconds=seconds
            ),
        )
    probed, _ = here.measure()
    assert probed.alone.median == pytest.approx(1e-3)
    assert probed.together.median == pytest.approx(3e-3 / 10)
    assert "c writes at 0.0001 GB/s, less than half as fast as the others at the same time." in probed.notes


def test_nodes_that_do_not_share_the_path_are_named(tmp_path):
    """They are measured, but a run could not use it."""
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    probed, _ = Here(tmp_path / "shared", tmp_path / "shared", tmp_path / "own").measure()
    assert "c: PATH is another folder there than on a. A run needs a folder that all nodes share." in probed.notes


def test_a_node_without_the_path_ends_the_probe(tmp_path):
    """Nothing stays on the nodes that have it."""
    (tmp_path / "shared").mkdir()
    with pytest.raises(StoreError, match="no such folder"):
        Here(tmp_path / "shared", tmp_path / "missing").measure()
    assert list((tmp_path / "shared").iterdir()) == []


def test_files_that_do_not_fit_are_refused_before_they_are_written(tmp_path):
    """By default their size follows the free space."""
    with pytest.raises(DiskFull, match=r"PATH: 2 files of 100.0 TB do not fit, because .* are free"):
        Here(tmp_path, tmp_path).measure(size_bytes=10**14)


@pytest.mark.process
def test_by_default_files_take_a_small_part_of_the_free_space(small_disk, monkeypatch):
    """A probe must not fill a disk that others use."""
    monkeypatch.setattr("planner.probe.measure._NETWORK_MOST_BYTES", MB)
    here = Here(small_disk, small_disk)
    probed, _ = here.measure(size_bytes=0)
    assert max(figure.num_bytes for figure in probed.figures if figure.what.startswith("write,")) < 2**20 / 8


def test_copies_of_each_gpu_are_figures(tmp_path):
    """Nodes without one are named together."""
    here = Here(tmp_path, tmp_path, tmp_path)
    here.gpus[1] = Copies(device="H200", moves={"host to GPU, pinned": [Move(num_bytes=10**9, seconds=0.02)] * 3})
    probed, _ = here.measure()
    copy = probed.figures[-1]
    assert (copy.what, copy.where, copy.how, copy.median) == ("host to GPU, pinned", "b", "H200", pytest.approx(50))
    assert "a, c: no GPU, so no copies were measured." in probed.notes
