"""The thread that exports a run's metrics: what it sets, and that its failures reach nobody."""

import threading

import pytest
from events import EVENT_S
from made_up_records import header, step

from planner.dispatch import metrics_exporter
from planner.dispatch.metrics_exporter import MetricsExporter
from planner.dispatch.ray_internal import ray_metrics
from planner.errors import StoreError
from planner.store.ledger import LedgerWriter
from planner.store.records import NO_HEAD
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch


class FakeMetrics:
    """What was set, and an event for each value that a test waits for."""

    def __init__(self):
        self.seen = []
        self.changed = threading.Condition()

    def set(self, values):
        with self.changed:
            self.seen.append(dict(values))
            self.changed.notify_all()

    def await_value(self, name, value):
        with self.changed:
            assert self.changed.wait_for(lambda: self.seen and self.last(name) == value, EVENT_S), self.seen[-1:]

    def last(self, name):
        return self.seen[-1].get((name, ""))


@pytest.fixture
def said():
    return []


@pytest.fixture
def exported(monkeypatch):
    """A stand-in for Ray, quick looks, and a controller's status that the test sets."""
    fake = FakeMetrics()
    fake.state = ""
    monkeypatch.setattr(metrics_exporter, "RayMetrics", lambda _run: fake)
    monkeypatch.setattr(metrics_exporter, "_LOOK_S", 0.01)
    monkeypatch.setattr(metrics_exporter, "state_of", lambda _launch: fake.state)
    return fake


@pytest.fixture
def run(tmp_path):
    run = RunFolder(Storage(str(tmp_path / "run")))
    run.ensure_identity()
    return run


@pytest.fixture
def exporter(run, said):
    job = type("Job", (), {"name": "demo"})()
    return MetricsExporter(run, Launch(job=job, url=run.storage.url, launch_id="ours"), said.append)


def test_values_follow_the_ledger_and_the_controller(exporter, exported, run, said):
    """A group that trains has workers. While none does, and at the end, there are none."""
    with exporter:
        exported.await_value("planner_workers", 0)
        run.claim_generation({})
        ledger = LedgerWriter(run.storage, header(1, world_size=3), NO_HEAD)
        exported.await_value("planner_workers", 3)
        ledger.write(step(0))
        exported.await_value("planner_step", 1)
        exported.state = "2 workers started, loading"
        exported.await_value("planner_workers", 0)
        exported.state = ""
        exported.await_value("planner_workers", 3)
        ledger.write(step(1))
    assert exported.last("planner_step") == 2
    assert exported.last("planner_workers") == 0
    assert said == []


def test_a_store_that_is_away_for_a_moment_costs_nothing(exporter, exported, said, monkeypatch):
    """The values are only older meanwhile."""
    answers = iter([StoreError("away"), [(1, header(1, world_size=2))]])

    def new_records():
        answer = next(answers, [])
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(exporter._ledger, "new_records", new_records)
    with exporter:
        exported.await_value("planner_workers", 2)
    assert said == []


def test_an_error_ends_the_thread_with_one_line(exporter, exported, said, monkeypatch):
    """Nothing is raised where the run is."""

    def fails(_values):
        raise ValueError("label is not ASCII")

    monkeypatch.setattr(exported, "set", fails)
    with exporter:
        exporter._thread.join(EVENT_S)
    assert said == ["metrics: not exported any more (label is not ASCII). The run goes on without them"]


def test_a_disk_that_hangs_does_not_hold_up_the_end(exporter, exported, monkeypatch):
    """And when it answers again, nothing is set: the driver has disconnected."""
    answer, asked = threading.Event(), threading.Event()

    def hangs():
        asked.set()
        answer.wait(EVENT_S)
        return []

    monkeypatch.setattr(metrics_exporter, "_LAST_LOOK_S", 0.05)
    monkeypatch.setattr(exporter._ledger, "new_records", hangs)
    with exporter:
        asked.wait(EVENT_S)
    assert exporter._thread.is_alive()
    answer.set()
    exporter._thread.join(EVENT_S)
    assert exported.seen == []


class FakeMetric:
    """One of Ray's metrics: what was recorded."""

    def __init__(self):
        self.records = []

    def set(self, value, tags=None):
        self.records.append((value, tags))

    def inc(self, value):
        assert value > 0  # Ray raises
        self.records.append((value, None))

    def _record(self, value):
        self.records.append((value, None))


@pytest.fixture
def ray_set(monkeypatch):
    """`RayMetrics`, whose metrics are not Ray's."""
    monkeypatch.setattr(ray_metrics, "_made", lambda _metric, _run: FakeMetric())
    return ray_metrics.RayMetrics("demo")


def test_counters_rise_by_what_is_new(ray_set):
    """From a 0 that is exported, too, and never by nothing."""
    for value in (0.0, 0.0, 3.0, 3.0, 5.0):
        ray_set.set({("planner_steps_done_total", ""): value})
    assert ray_set._made["planner_steps_done_total"][1].records == [(0.0, None), (3.0, None), (2.0, None)]


def test_labels_become_ascii(ray_set):
    """Ray raises an error at anything else."""
    ray_set.set({("planner_objective_metric", "größe"): 1.0, ("planner_loss", ""): 2.0})
    assert ray_set._made["planner_objective_metric"][1].records == [(1.0, {"metric": "gr\\xf6\\xdfe"})]
    assert ray_set._made["planner_loss"][1].records == [(2.0, None)]
