"""However a run ends in order, it waits until the commit in flight is durable, and then commits its last step."""

import contextlib
import os
import signal
import threading
from functools import partial

import pytest
from events import wait_for
from held_writes import ONLY_COMMIT, Gate, only_commit
from live_runs import fit, make_job, records, run_of

from planner.dispatch.ray_internal import drain_node
from planner.provenance.audit import audit
from planner.store.commit_names import commit_of

pytestmark = pytest.mark.ray


class Director(threading.Thread):
    """Acts when a write is in flight, and lets it go on when training waits for it."""

    def __init__(self, job, folder, act, after=lambda: None):
        super().__init__(daemon=True)
        self._run, self._folder, self._act, self._after = run_of(job), folder, act, after
        self._gate = Gate(folder)
        self.durable_before = None
        """the commits there were when training waited for the one in flight"""

    def __enter__(self):
        self._folder.mkdir()
        self._gate.close()
        self.start()
        return self

    def __exit__(self, *_):
        self._gate.open()
        self.join(timeout=5)

    def run(self):
        try:
            wait_for((self._folder / "writing").exists)
            self._act()
            wait_for((self._folder / "waited_for").exists)
        except BaseException:
            os.kill(os.getpid(), signal.SIGINT)
            raise
        self.durable_before = self._run.commits()
        self._gate.open()
        self._after()


def fit_held(job, folder):
    fit(job, hooks=partial(only_commit, str(folder)))


def check_ended(job, director):
    """Nothing is in flight, the newest manifest is at the step at which the run has stopped, and all is on record."""
    run = run_of(job)
    assert director.durable_before == []
    stopped = stopped_at(run)
    assert [commit["step"] for commit in records(run, "commit")] == [ONLY_COMMIT, stopped]
    assert set(run.storage.names("checkpoints")) <= set(run.commits())
    found = audit(run)
    assert found.clean, found.findings
    assert (found.steps, found.uncommitted, found.recomputed) == (stopped, 0, 0)


def stopped_at(run):
    """How many steps the run has done. All of them are durable."""
    stopped = records(run, "step")[-1]["step"] + 1
    assert run.manifest(run.commits()[-1]).step == stopped
    return stopped


def test_ctrl_c_waits_for_the_commit_in_flight(resized):
    """The driver ends when the step at which it stopped is durable."""
    assert resized.acts_done == 3
    run = run_of(resized.job)
    stopped = stopped_at(run)
    assert {commit_of(name)[1] for name in resized.before_the_stop} == {2}
    in_flight, last = [name for name in run.commits() if commit_of(name)[1] == 3]
    assert commit_of(in_flight)[0] < commit_of(last)[0] == stopped
    assert [record["name"] for record in records(run, "commit")][-2:] == [in_flight, last]
    assert set(run.storage.names("checkpoints")) <= set(run.commits())
    found = audit(run)
    assert (found.steps, found.uncommitted, found.recomputed) == (stopped, 0, 0)


@pytest.mark.slow  # CI has Ctrl-C, in the resized run
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_commit_in_flight(tmp_path, number):
    """Ctrl-C, and SIGTERM as `ray job stop` sends it. The driver ends when the step at which it stopped is durable."""
    job = make_job(tmp_path, steps=100_000, most=2, every_steps=ONLY_COMMIT)
    act = partial(os.kill, os.getpid(), number)
    with Director(job, tmp_path / "held", act) as director, pytest.raises(KeyboardInterrupt):
        fit_held(job, tmp_path / "held")
    check_ended(job, director)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_end_of_a_run_waits_for_the_commit_in_flight(tmp_path):
    """Held at 20 of 30 steps, and written when all 30 are done."""
    job = make_job(tmp_path, steps=30, most=2, every_steps=ONLY_COMMIT)
    with Director(job, tmp_path / "held", lambda: None) as director:
        fit_held(job, tmp_path / "held")
    check_ended(job, director)


@pytest.mark.slow
def test_a_notice_to_all_nodes_waits_for_the_commit_in_flight(cluster, tmp_path):
    """The workers leave when the step is durable. Then the run waits for nodes, and is interrupted."""
    job = make_job(tmp_path, steps=100_000, most=3, every_steps=ONLY_COMMIT)
    nodes = list(cluster.nodes())

    def notice():
        for node in nodes:
            drain_node(node, 60, "test")  # they train until the last moment

    def interrupt():
        wait_for(lambda: len(run_of(job).commits()) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    director = Director(job, tmp_path / "held", notice, after=interrupt)
    with director, contextlib.suppress(KeyboardInterrupt):
        fit_held(job, tmp_path / "held")
    for node in nodes:
        cluster.kill_node(node)
    check_ended(job, director)
