"""However a run ends in order, it waits until the commit in flight is durable, and then commits its last step."""

import contextlib
import os
import signal
import threading
import time
from functools import partial

import pytest
from held_writes import ONLY_COMMIT, held_hooks
from live_runs import LIMIT_S, TEST_TIMINGS, make_job, records, run_of

from planner.dispatch import launch as dispatch
from planner.dispatch.ray_internal import drain_node
from planner.provenance.audit import audit

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), pytest.mark.usefixtures("cluster")]


class Director(threading.Thread):
    """Acts when a write is in flight, and lets it go on when training waits for it."""

    def __init__(self, job, folder, act, after=lambda: None):
        super().__init__(daemon=True)
        self._run, self._folder, self._act, self._after = run_of(job), folder, act, after
        self.durable_before = None
        """the commits there were when training waited for the one in flight"""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        (self._folder / "go").touch()
        self.join(timeout=5)

    def run(self):
        self._await((self._folder / "writing").exists)
        self._act()
        self._await((self._folder / "waited_for").exists)
        self.durable_before = self._run.commits()
        (self._folder / "go").touch()
        self._after()

    def _await(self, condition):
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError("it never came to this")
            time.sleep(0.05)


def fit_held(job, folder):
    folder.mkdir()
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    hooks = partial(held_hooks, str(folder))
    dispatch.train_on_ray(launch, TEST_TIMINGS, on_cpu=True, embedded=True, hooks=hooks)


def check_ended(job, director, num_before=0):
    """Nothing is in flight, the newest manifest is at the step at which the run has stopped, and all is on record."""
    run = run_of(job)
    assert director.durable_before is not None
    assert len(director.durable_before) == num_before
    stopped = records(run, "step")[-1]["step"] + 1
    assert run.manifest(run.commits()[-1]).step == stopped
    assert [commit["step"] for commit in records(run, "commit")] == [ONLY_COMMIT, stopped]
    assert set(run.storage.names("checkpoints")) <= set(run.commits())
    found = audit(run)
    assert found.clean, found.findings
    assert (found.steps, found.uncommitted, found.recomputed) == (stopped, 0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_waits_for_the_commit_in_flight(tmp_path, number):
    """Ctrl-C and SIGTERM, as `ray job stop` sends it. The driver ends when the step at which it stopped is durable."""
    job = make_job(tmp_path, steps=100_000, most=2, every_steps=ONLY_COMMIT)
    act = partial(os.kill, os.getpid(), number)
    with Director(job, tmp_path / "held", act) as director, pytest.raises(KeyboardInterrupt):
        fit_held(job, tmp_path / "held")
    check_ended(job, director)


@pytest.mark.slow
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
            drain_node(node, 60, "test")

    def interrupt():
        run, deadline_s = run_of(job), time.monotonic() + LIMIT_S
        while len(run.commits()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    director = Director(job, tmp_path / "held", notice, after=interrupt)
    with director, contextlib.suppress(KeyboardInterrupt):
        fit_held(job, tmp_path / "held")
    for node in nodes:
        cluster.kill_node(node)
    check_ended(job, director)
