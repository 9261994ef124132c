"""A generation whose keeper dies and is replaced: it copies to the new one, and the next has the same bits."""

import threading

import pytest
from events import EVENT_S
from test_evidence import make_job

from planner.keeper.addresses import Keepers
from planner.keeper.server import Keeper
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train import keeper_links
from planner.train.checkpoints.checkpoint import read_digests
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

SECRET = "open-sesame-0123456789"
STEPS = 9

pytestmark = pytest.mark.usefixtures("process_group")


class Node:
    """This machine as a node, whose keeper ends before one step and is replaced before another."""

    def __init__(self, *, begins=0, ends=None, again=None):
        self._begins, self._ends, self._again = begins, ends, again
        self.keeper = None
        self.at(0)

    def at(self, step):
        if step == self._ends:
            self.close()
        if step in {self._begins, self._again} and self.keeper is None:
            self.keeper = Keeper(bound_bytes=2**26, secret=SECRET)

    def close(self):
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None

    def keepers(self):
        addresses = () if self.keeper is None else (self.keeper.address_on("a"),)
        return Keepers(node="a", addresses=addresses, secret=SECRET)


def generation(job, url, node, stop_at=None):
    def should_stop(step):
        for thread in threading.enumerate():  # what looks for a keeper or publishes is done before the next step
            if thread.name in {"planner-keepers", "planner-commit"} and thread is not threading.current_thread():
                thread.join(EVENT_S)
                assert not thread.is_alive()
        node.at(step)
        return step == stop_at

    hooks = Hooks(should_stop=should_stop, may_hold=lambda: True, keepers=node.keepers)
    return train(Launch(job=job, url=url, keeper_secret=SECRET), cpu_device, hooks)


@pytest.mark.parametrize(
    "life",
    [{"begins": 2}, {"ends": 2, "again": 3}, {"ends": 3, "again": 3}],
    ids=["it comes late", "it is replaced later", "it is replaced at once"],
)
def test_the_generation_goes_on_with_the_new_keeper(tmp_path, monkeypatch, life):
    """Its last step is in the new keeper's memory, as it was."""
    monkeypatch.setattr(keeper_links, "_SEARCH_AGAIN_S", -1.0)
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    job = make_job(tmp_path / "corpus.txt", train={"steps": STEPS}, checkpoint={"every": 1000, "memory": 1})
    run, plain = (RunFolder(Storage(str(tmp_path / name))) for name in ("run", "plain"))
    train(Launch(job=job, url=plain.storage.url), cpu_device, Hooks())
    node = Node(**life)
    try:
        end = generation(job, run.storage.url, node, stop_at=7)
        assert (end.step, end.is_held) == (7, True)
        assert generation(job, run.storage.url, node).finished
    finally:
        node.close()
    found = audit(run)
    assert found.clean, found.findings
    assert found.recomputed == 0
    last, expected = (each.manifest(each.commits()[-1]) for each in (run, plain))
    assert read_digests(run.storage, last) == read_digests(plain.storage, expected)
