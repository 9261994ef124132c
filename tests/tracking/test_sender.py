"""What a tracker may do: be slow, raise, hang, lose what it was given. Each step arrives once, and training goes on."""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from events import EVENT_S, wait_for
from hypothesis import given
from hypothesis import strategies as st
from ledgers import Run, loss, two_losses

from planner.errors import NewerFormat, StoreError, TrackerUnavailable
from planner.job.tracking import JsonlTracking
from planner.tracking import child, sender
from planner.tracking.child import End, follow, sent_text, unsent_text
from planner.tracking.sender import Sender, Subject
from planner.tracking.state import AnotherSender, SentState, read_state, sender_lock, state_name


class Service:
    """A tracker's server: what it has, and what it does with the next calls."""

    def __init__(self):
        self.steps, self.losses, self.lives, self.plans = [], [], [], []
        self.opened = self.closed = 0
        self.ids = []

    def does(self, *acts):
        """Each call of open, log, live and close takes the next act, as long as there are any."""
        self.plans.extend(acts)
        return self

    def act(self):
        if self.plans:
            self.plans.pop(0)()

    def open(self, _section, run):
        self.ids.append(run.tracker_id)
        self.act()
        self.opened += 1
        return FakeTracker(self)


class FakeTracker:
    def __init__(self, service):
        self._service = service
        self.tracker_id = "id of the service"

    def last_step(self):
        return max(self._service.steps, default=-1)

    def log(self, rows):
        for row in rows:
            self._service.act()
            self._service.steps.append(row.step)
            self._service.losses.append(row.values.get("train/loss"))

    def live(self, values):
        self._service.lives.append(values)

    def close(self):
        self._service.act()
        self._service.closed += 1


def down():
    raise ConnectionError("nobody listens\nat this port")


def nothing():
    pass


@pytest.fixture
def run(tmp_path):
    return two_losses(tmp_path / "run")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Polls and retries follow each other at once. A slow machine is not mentioned."""
    for name in ("_POLL_S", "_FIRST_RETRY_S", "_LONGEST_RETRY_S"):
        monkeypatch.setattr(sender, name, 0.01)
    monkeypatch.setattr(child, "_LOOK_S", 0.01)
    monkeypatch.setattr(child, "_BRIEF_S", EVENT_S)


def minutes_pass_with(monkeypatch, *events):
    """Let a minute of the end's clock pass with each event, one after the other. Until then it stands."""
    waiting, now_s, until_s = list(events), [-60.0], time.monotonic() + EVENT_S

    def clock():
        if now_s[0] < 0:  # when the end begins
            now_s[0] = 0.0
        elif waiting and (waiting[0]() or time.monotonic() > until_s):
            del waiting[0]
            now_s[0] += 60.0
        return now_s[0]

    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=clock))


def sender_of(run, service, said=None, **facts):
    subject = Subject(url=run.url, section=JsonlTracking(), name="walk", config={})
    return Sender(subject, (said if said is not None else []).append, open_=service.open, **facts)


def finished(run, service, said=None, limit_s=EVENT_S, **facts):
    """A sender after the end of its run."""
    ending = threading.Event()
    ending.set()
    found = sender_of(run, service, said, **facts)
    follow([found], (said if said is not None else []).append, ending, End(limit_s=limit_s))
    return found


ALL = list(range(17))


def test_each_step_is_sent_once_with_the_loss_that_counts(run):
    """Also by a second process, which continues by the tracker's own id."""
    service = Service()
    assert finished(run, service).num_sent == 17
    assert service.steps == ALL
    assert service.losses[1:] == [
        *(loss(1, step) for step in range(4)),
        *(loss(2, step) for step in range(4, 8)),
        *(loss(3, step) for step in range(8, 16)),
    ]
    again = finished(run, service)
    assert (again.num_sent, again.is_done, service.steps) == (0, True, ALL)
    assert service.ids == ["", "id of the service"]
    assert service.closed == 2


@given(st.lists(st.sampled_from([down, nothing, nothing, nothing]), max_size=40))
def test_a_service_that_fails_anywhere_gets_each_step_once(tmp_path_factory, acts):
    """When it is opened, in the middle of a batch, or when it is closed."""
    run = two_losses(tmp_path_factory.mktemp("any") / "run")
    service = Service().does(*acts)
    assert finished(run, service).is_done
    assert service.steps == ALL


def test_a_failure_is_said_once_and_its_end_too(run):
    """Not every attempt. The line has the last line of the error."""
    said = []
    found = finished(run, Service().does(*[down] * 5), said, goes_on="Training goes on")
    assert said == [
        "jsonl: ConnectionError: at this port. Training goes on",
        "jsonl: has caught up, to step 16",
    ]
    assert (found.problem, unsent_text(found)) == ("", "")
    assert sent_text(found) == "jsonl: 17 rows sent, up to step 16"


def test_a_service_that_is_down_for_ever_ends_with_what_is_missing(run, monkeypatch):
    """After the limit. It was asked again until then."""
    said = []
    service = Service().does(*[nothing] * 4, *[down] * 10_000)
    minutes_pass_with(monkeypatch, lambda: len(service.plans) < 10_000 - 2)
    found = finished(run, service, said, limit_s=30.0)
    assert not found.is_done
    assert service.steps == [0, 1, 2]
    assert len(service.plans) < 10_000 - 2
    assert unsent_text(found).startswith("jsonl: ")
    assert said[0] == "jsonl: ConnectionError: at this port"


def test_a_service_that_hangs_holds_neither_the_others_nor_the_end(run, monkeypatch):
    """One hangs in `open`, one in `log`. The third has everything, and then the time passes."""
    for_ever, said = threading.Event(), []
    in_open, in_log, well = Service().does(for_ever.wait), Service().does(nothing, nothing, for_ever.wait), Service()
    senders = [sender_of(run, service, said) for service in (in_open, in_log, well)]
    for number, each in enumerate(senders):
        each._name = f"{each._name}{number}"
    ending = threading.Event()
    ending.set()
    monkeypatch.setattr(child, "_BRIEF_S", 1.0)
    minutes_pass_with(monkeypatch, lambda: senders[2].is_done and not (in_open.plans or in_log.plans), lambda: said)
    assert not follow(senders, said.append, ending, End(limit_s=90.0))
    assert [each.is_done for each in senders] == [False, False, True]
    assert well.steps == ALL
    assert "sending the last 0 steps to jsonl, 0 to jsonl" in said  # its commits have no manifests
    assert unsent_text(senders[0]).endswith("not sent, because it did not answer in time")
    for_ever.set()


def test_a_hanging_service_is_said_while_the_run_goes_on(run, monkeypatch):
    """Once, then at growing intervals, on a clock of the test's own."""
    now_s, for_ever, ending, said = [100.0], threading.Event(), threading.Event(), []
    for module in (child, sender):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    service = Service().does(for_ever.wait)
    found = sender_of(run, service)
    thread = threading.Thread(target=follow, args=([found], said.append, ending), daemon=True)
    thread.start()
    wait_for(lambda: not service.plans)
    now_s[0] += 75.0
    wait_for(lambda: said)
    ending.set()
    for_ever.set()
    thread.join(EVENT_S)
    assert found.is_done
    assert said == ["jsonl: has not answered for 75 s. Training goes on"]


def test_rows_follow_the_run_while_it_trains(tmp_path, monkeypatch):
    """What is committed is sent, and the newest loss is shown as a live value. The rest comes at the end."""
    now_s = [100.0]
    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    run = Run(tmp_path / "run").begin(0).steps(3).commit().steps(2)
    service, found = Service(), None
    found = sender_of(run, service)
    found.send()
    assert service.steps == [1, 2, 3]
    assert service.lives == [{"live/step": 5, "live/loss": loss(1, 4), "live/world_size": 2}]
    run.steps(1)
    now_s[0] += 9.0
    found.send()
    assert service.steps == [1, 2, 3]
    assert len(service.lives) == 1  # at most every ten seconds
    run.commit().evaluate(7.0)
    found.send()
    assert service.steps == [1, 2, 3, 4, 5, 6]
    found.close()


def test_a_service_that_lost_rows_gets_them_again(run):
    """It says what it has. The record in the run's folder may say more."""
    service = Service()
    finished(run, service)
    del service.steps[10:]
    finished(run, service)
    assert service.steps == ALL


def test_a_service_that_lost_rows_gets_them_again_from_the_same_process(run):
    """It failed after them, so it is asked again what it has."""
    service = Service()

    def lose():
        del service.steps[10:]
        raise ConnectionError("began anew")

    run.steps(1)
    found = sender_of(run, service)
    found.send()
    run.steps(1).commit()
    service.does(lose)
    assert isinstance(found._attempt(close=False, last=False), ConnectionError)
    assert found._attempt(close=True, last=True) is None
    assert service.steps == list(range(19))


def test_a_store_that_fails_while_rows_are_read_loses_none(run, monkeypatch):
    """The rows before the failure are kept for the next attempt."""
    service, found = Service(), None
    found = sender_of(run, service)
    records = list(found._feed._ledger.new_records())
    pieces = [records[:9], records[9:]]

    def new_records():
        if pieces:
            yield from pieces.pop(0)
        if pieces:
            raise StoreError("away for a moment")

    monkeypatch.setattr(found._feed._ledger, "new_records", new_records)
    assert isinstance(found._attempt(close=False, last=True), StoreError)
    assert found._attempt(close=True, last=True) is None
    assert service.steps == ALL


def test_a_library_that_exits_is_tried_again(run):
    """It ends neither the thread nor the process."""

    def leave():
        raise SystemExit(3)

    said, service = [], Service().does(leave, nothing, leave)
    assert finished(run, service, said).is_done
    assert service.steps == ALL
    assert said[0] == "jsonl: SystemExit: 3"


def test_a_password_in_an_error_is_not_shown(run):
    """Libraries name the URL that they could not reach."""

    def refuse():
        raise ConnectionError("GET http://me:secret@127.0.0.1:9/api failed")

    said = []
    finished(run, Service().does(refuse), said)
    assert said[0] == "jsonl: ConnectionError: GET http://127.0.0.1:9/api failed"


def test_a_service_that_has_everything_is_not_late(run):
    """A patient end counts rows that the tracker had as well, because a long ledger takes its time to read."""
    finished(run, service := Service())
    found = finished(run, service)
    assert (found.num_sent, found.num_passed) == (0, 17)


def test_a_torn_record_is_read_as_none(run):
    """The tracker itself says what it has."""
    service = Service()
    finished(run, service)
    where = f"tracking/{state_name(JsonlTracking())}.json"
    assert read_state(run.storage, state_name(JsonlTracking())) == SentState(tracker_id="id of the service", step=16)
    run.storage.write(where, b'{"format": 1, "ki')
    finished(run, service)
    run.storage.write(where, b'{"format": 1, "kind": "jsonl", "step": 1e999, "tracker_id": ""}')
    finished(run, service)
    assert service.steps == ALL
    run.storage.write(where, b'{"format": 2, "kind": "jsonl", "step": 3, "tracker_id": ""}')
    said = []
    assert not finished(run, service, said).is_done
    with pytest.raises(NewerFormat):
        read_state(run.storage, state_name(JsonlTracking()))
    assert said[0].startswith("jsonl: tracking/jsonl-")


def test_two_processes_never_send_at_once(run):
    """The second is refused with a clear error, and succeeds after the first."""
    name = state_name(JsonlTracking())
    refused = pytest.raises(AnotherSender, match="another process sends this run to jsonl now")
    with sender_lock(run.storage, name), refused:
        sender_of(run, Service()).send(last=True)
    finished(run, service := Service())
    assert service.steps == ALL


def test_names_for_people_do_not_begin_another_run():
    """Settings that say where rows go do."""
    from planner.job.tracking import WandbTracking

    one = WandbTracking(project="a")
    assert state_name(one) == state_name(WandbTracking(project="a", name="b", tags=("c",), group="d"))
    assert len({state_name(one), state_name(WandbTracking(project="b")), state_name(JsonlTracking())}) == 3


def test_sections_that_name_one_place_are_one_tracker():
    """Otherwise the second one would wait for the first one's end."""
    from planner.job import Job
    from planner.job.tracking import MlflowTracking, WandbTracking

    sections = (WandbTracking(name="a"), WandbTracking(name="b"), MlflowTracking(uri="x"))
    job = Job.model_construct(name="walk", tracking=sections)
    assert [each.section.kind for each in child.subjects_of(job, "run")] == ["wandb", "mlflow"]


def test_a_job_holds_no_password():
    """The run's folder keeps the job, and other trackers show it."""
    from pydantic import ValidationError

    from planner.job.tracking import MlflowTracking

    assert MlflowTracking(uri="https://mlflow.example.com:5000").uri
    with pytest.raises(ValidationError, match="Set the variable MLFLOW_TRACKING_URI instead"):
        MlflowTracking(uri="https://me:secret@mlflow.example.com")


def test_what_no_later_attempt_repairs_is_not_tried_again(run):
    """A library that is not installed, say."""

    def gone():
        raise TrackerUnavailable("tracking: wandb needs the package wandb")

    said, service = [], Service().does(*[gone] * 100)
    assert not finished(run, service, said).is_done
    assert (len(service.plans), said) == (99, ["jsonl: tracking: wandb needs the package wandb"])


def test_a_batch_that_was_not_recorded_is_not_sent_twice(run, monkeypatch):
    """A process that is killed between the two leaves the tracker ahead of the record."""
    service = Service()
    found = sender_of(run, service)
    monkeypatch.setattr(found, "_keep", lambda state: setattr(found, "state", replace(state, step=-1)))
    found.send(last=True)
    found.close()
    assert read_state(run.storage, state_name(JsonlTracking())).step == -1
    finished(run, service)
    assert service.steps == ALL


def test_the_config_has_the_job_and_its_identity(run):
    """With dotted keys."""
    seen = []

    def open_(section, tracked):
        seen.append(tracked)
        return Service().open(section, tracked)

    subject = Subject(url=run.url, section=JsonlTracking(), name="walk", config=child.flat({"a": {"b": [1]}, "c": 2}))
    Sender(subject, print, open_=open_).send(last=True)
    (tracked,) = seen
    assert (tracked.run_id, tracked.name, tracked.folder) == ("a" * 32, "walk", run.url)
    assert json.loads(tracked.config["a.b"]) == [1]
    assert (tracked.config["c"], tracked.config["global_batch"], tracked.config["identity.seed"]) == (2, 12, 0)
