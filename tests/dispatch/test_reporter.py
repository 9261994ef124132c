"""What the driver is told, in the cluster's key-value store, without a cluster."""

from types import SimpleNamespace

import pytest
from made_up_groups import elastic_controller, silent_controller, workers_on
from message import Message

from planner.dispatch import worker
from planner.dispatch.mailbox import end_reply_key, post_event, state_key, status_key, verdict_key
from planner.elastic.mistakes import GaveUp
from planner.elastic.states import Idle, Waiting
from planner.elastic.view import Act, View
from planner.errors import TrainingFailed
from planner.events.failures import GivesUp, Hung
from planner.events.outlook import Starts
from planner.events.sizing import Waited
from planner.events.stopping import WaitsForRoom
from planner.plan import FIRST_COLLECTIVES_S
from planner.store.run_status import RunStatus

pytestmark = pytest.mark.usefixtures("ray_environment")

LOADING = Starts(size=2, how="loading")


@pytest.fixture
def published(monkeypatch):
    """What stands in the cluster's key-value store."""
    from planner.dispatch.ray_internal import reporter

    found = {}
    monkeypatch.setattr(reporter, "kv_put", found.__setitem__)
    return found


@pytest.fixture
def controller():
    return silent_controller()


@pytest.fixture
def reporter(controller):
    from planner.dispatch.ray_internal.reporter import Reporter

    return Reporter(controller, "l", "")


def test_a_group_that_steps_is_no_longer_loading(reporter, published):
    """Each group anew."""
    for _ in range(2):
        reporter.tell_driver(LOADING)
        assert published[state_key("l")] == "2 workers started, loading"
        reporter.stepped()
        assert published[state_key("l")] == ""


def test_what_was_said_since_the_start_stays(reporter, published):
    """A group that is to stop before its first step was heard of."""
    reporter.tell_driver(LOADING)
    reporter.tell_driver(Message(text="all workers stop"))
    reporter.stepped()
    assert published[state_key("l")] == "all workers stop"


@pytest.fixture
def shown(reporter):
    """Why nobody trains, as the live status says it."""
    texts = []
    reporter._publisher = SimpleNamespace(publish=lambda *_, why, **__: texts.append(why))
    return texts


def test_the_live_status_has_the_time_that_is_left_of_a_stop(reporter, controller, published, shown):
    """The terminal gets the text of a stop once. What is told after it stays as it is."""
    controller.stop, controller.state = Message(text="about 9 s"), None
    reporter.tell_driver_of_stop(controller.stop)
    for text in ("about 9 s", "about 7 s"):
        controller.stop = Message(text=text)
        reporter.publish(None, Act(), None, {})
    assert published[state_key("l")] == "about 9 s"
    reporter.tell_driver(Starts(size=2, how="after_stop"))
    reporter.publish(None, Act(), None, {})
    assert shown == ["about 9 s", "about 7 s", "continuing with 2 workers"]


@pytest.mark.usefixtures("published")
def test_workers_that_have_parked_wait_for_room_and_not_for_a_commit(reporter, controller, shown):
    """Their step is durable or in memory by then."""
    decision = SimpleNamespace(events=(WaitsForRoom(room=1, least=2),))
    controller.state = Waiting(known=None, group=None, most=2)
    controller.stop, controller.next_decision = Message(text="a commit"), lambda _view: decision
    reporter.tell_driver_of_stop(controller.stop)
    reporter.publish(None, Act(), None, {})
    assert shown == ["waiting: room for 1, but workers.min is 2"]


def test_events_are_told_to_the_worker_that_writes_the_ledger(reporter):
    """Each once, in order."""
    told = []
    events = (Message(text="a note"), Waited(waited_s=40.0))
    reporter.tell_ledger(events, [*workers_on("a", told), *workers_on("b")])
    assert told == [(post_event, (event,)) for event in events]


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (Act(kind="resize", world_size=2, events=(Message(text="not this"),)), "noted; starting 2 workers"),
        (Act(kind="end", events=(Message(text="the end"),)), "the end"),
        (Act(events=(Message(text="waiting"),)), "waiting; no nodes"),
    ],
)
def test_without_a_group_the_driver_is_told_what_happens(reporter, controller, published, act, told):
    """Why nodes do not come is told as long as the run waits for them."""
    controller.events = (Message(text="noted"),)
    reporter.tell_without_group(act, Message(text="no nodes"))
    assert published[state_key("l")] == told
    assert (end_reply_key("l") in published) == (act.kind == "end")


def test_why_the_run_ends_is_published_whole_and_raised_as_an_error_of_ours(reporter, published):
    """Ray passes on the last 300 characters of a text."""
    text = "the workers failed 6 times in a row without progress: no progress for 10 min (limit 10 min)"
    hung = Hung(silence_s=600, limit_s=600, deaf=0)
    with pytest.raises(TrainingFailed) as raised, reporter.verdict():
        raise GaveUp(GivesUp(reason=hung, why="no_progress", failures=6))
    assert published == {verdict_key("l"): text}
    assert str(raised.value) == text


def test_only_the_reply_to_the_driver_may_fail(reporter, monkeypatch):
    """The run can do without the rest. A driver that gets no reply would wait."""
    from planner.dispatch.ray_internal import reporter as reporters

    def fail(_key, _value):
        raise ConnectionError

    monkeypatch.setattr(reporters, "kv_put", fail)
    reporter.tell_driver(LOADING)
    reporter.stepped()
    reporter.tell_next_group(9.0)
    with pytest.raises(ConnectionError):
        reporter.ended()


def test_an_event_without_a_text_ends_no_run(reporter, published):
    """A mistake in a sentence is not worth the workers."""
    reporter.tell_driver(object())
    assert published == {}
    reporter.tell_driver(LOADING)
    assert published[state_key("l")] == "2 workers started, loading"


def test_a_group_that_starts_finds_how_long_its_first_collectives_may_wait(reporter, published, monkeypatch):
    """Longer than the controller waits at that size: at one worker, the first round may take eight times as long."""
    controller = elastic_controller(most=8, max_micro=8)
    monkeypatch.setattr(worker, "kv_get", lambda key: published.get(key, ""))
    assert worker.collectives_s("l") == 0.0
    reporter.tell_next_group(controller.first_collectives_s(8))
    assert worker.collectives_s("l") == FIRST_COLLECTIVES_S
    controller.started(tuple("abcdefgh"))
    reporter.tell_next_group(controller.first_collectives_s(1))
    assert worker.worker_hooks(SimpleNamespace(launch_id="l")).collectives_s() == 8 * FIRST_COLLECTIVES_S


class TestPublishing:
    """The live status in the cluster's key-value store."""

    @pytest.fixture
    def store(self, monkeypatch):
        """What is published, oldest first, and a clock that the test sets."""
        from planner.dispatch import live_status

        store = SimpleNamespace(published=[], now_s=1000.0, fails=False)

        def put(key, value):
            if store.fails:
                raise ConnectionError
            assert key == status_key("l")
            store.published.append(RunStatus.model_validate_json(value))

        monkeypatch.setattr(live_status, "kv_put", put)
        monkeypatch.setattr(
            live_status, "time", SimpleNamespace(monotonic=lambda: store.now_s, time=lambda: store.now_s)
        )
        return store

    @pytest.fixture
    def publish(self, store):
        from planner.dispatch.live_status import StatusPublisher

        controller = elastic_controller(least=2, clock=lambda: store.now_s)
        publisher = StatusPublisher(controller, "l")

        def publish(*nodes, at_once=False, newcomers=list, draining=None, room=("a",)):
            if nodes and isinstance(controller.state, Idle):
                controller.started(nodes)
            view = View(room=dict.fromkeys(room, 1), draining=draining or {}, nodes=nodes)
            controller.step(view)
            publisher.publish(view, newcomers=newcomers, hosts={"a": "one"}, why="", at_once=at_once)

        return publish

    def test_it_says_who_works_where_and_what_comes_next(self, store, publish):
        publish()
        publish("a", "b", at_once=True, newcomers=lambda: ["", "c"], draining={"b": 30.0})
        waiting, training = store.published
        assert (waiting.state, waiting.next) == ("Idle", "waiting: room for 1, but workers.min is 2")
        assert [(node.node, node.host, node.room, node.leaves_s) for node in training.nodes] == [
            ("a", "one", 1, None),
            ("b", "", 0, 1030.0),
        ]
        found = [(worker.rank, worker.node, worker.state) for worker in training.workers]
        assert found == [(0, "a", "starting"), (1, "b", "leaving"), (None, "", "warming"), (None, "c", "warming")]

    def test_it_is_published_at_most_once_a_second_and_when_something_changed(self, store, publish):
        """Unchanged, it is repeated after five seconds; an act is published at once."""
        publish()
        for passed_s, number, at_once in [
            (0.5, 1, False),
            (0.5, 2, True),
            (1.5, 2, False),
            (3.0, 2, False),
            (0.6, 3, False),
        ]:
            store.now_s += passed_s
            publish(at_once=at_once)
            assert len(store.published) == number
        store.now_s += 1.1
        publish(room=("a", "c"))
        assert len(store.published) == 4

    def test_no_failure_reaches_the_controller(self, store, publish):
        """The head is away, or a newcomer cannot be asked. The next status is published again."""

        def fail():
            raise RuntimeError

        store.fails = True
        publish(at_once=True)
        store.fails = False
        publish(at_once=True, newcomers=fail)
        assert store.published == []
        publish()
        assert len(store.published) == 1
