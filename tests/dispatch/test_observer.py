"""What the policy sees of the cluster and hears of groups, without a cluster."""

from types import SimpleNamespace

import pytest
from made_up_groups import elastic_controller, group_on, poll, silent_controller, workers_on

from planner.base import memory_errors
from planner.base.user_errors import CodeError, UserCodeFailed
from planner.dispatch import launch, worker
from planner.dispatch.mailbox import PARKED
from planner.errors import TrainingFailed
from planner.events.failures import StartFailed
from planner.plan.lowered_caps import Caps, LoweredCaps
from planner.store.lowered_caps import CAPS_FILE, caps_of_text, keep_caps, read_caps
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.usefixtures("ray_environment")


@pytest.fixture
def observers():
    """The module; it imports Ray."""
    from planner.dispatch.ray_internal import observer

    return observer


@pytest.fixture
def told(monkeypatch):
    """What stands in the cluster's key-value store."""
    from planner.dispatch.ray_internal import reporter

    found = {}
    monkeypatch.setattr(reporter, "kv_put", found.__setitem__)
    return found


@pytest.fixture
def observer(observers, told):  # noqa: ARG001
    """Of a launch whose controller decides nothing."""
    return make(observers, silent_controller())


def make(observers, controller, room=(), run=""):
    from planner.dispatch.ray_internal.reporter import Reporter

    autoscaler = SimpleNamespace(room=lambda: dict.fromkeys(room, 1))
    return observers.Observer(controller, Reporter(controller, "l", run), autoscaler, "l")


@pytest.fixture
def looks_at(monkeypatch, observers):
    """`looks_at(dead="c", silent="b", draining={...})` -> the cluster is so, with the nodes a, b, c and d."""

    def be(*, dead="", silent="", draining=None, requests=(), markets=None):
        state = SimpleNamespace(state=SimpleNamespace(get_draining_nodes=lambda: draining))
        ray = SimpleNamespace(
            nodes=lambda: [
                {
                    "NodeID": node,
                    "Alive": node not in dead,
                    "NodeManagerHostname": f"host-{node}",
                    "Labels": {"ray.io/market-type": markets[node]} if markets and node in markets else None,
                }
                for node in "abcd"
            ],
            _private=SimpleNamespace(state=state),
        )
        monkeypatch.setattr(observers, "ray", ray)
        monkeypatch.setattr(observers, "kv_get", lambda key: "yes" if key in requests else "")
        monkeypatch.setattr(observers, "silent_nodes", lambda nodes: nodes & {*silent})

    return be


def test_a_view_has_the_nodes_that_are_dead_for_ray_and_those_that_do_not_answer(observers, looks_at, told):  # noqa: ARG001
    looks_at(dead="c", silent="b", draining={"d": 0, "c": 0})
    observer = make(observers, silent_controller(bad_nodes=("a",)), room="abcd")
    assert observer.look()
    observer._probe(set("ab"))
    assert observer.look()
    view = observer.view()
    assert (dict(view.room), view.dead, view.draining) == ({"a": 1}, {"b", "c"}, {"d": float("inf")})
    assert observer.num_bad == 1
    assert observer.hosts == {node: f"host-{node}" for node in "abd"}
    assert observer.leaving == {"b", "d"}


def test_a_cluster_that_does_not_answer_changes_nothing(observers, looks_at, told):  # noqa: ARG001
    looks_at()
    observer = make(observers, silent_controller(), room="ab")
    assert observer.look()

    def fail():
        raise ConnectionError

    observer._autoscaler.room = fail
    assert not observer.look()
    assert observer.room == {"a": 1, "b": 1}


def test_a_request_to_end_the_run_stays(observers, looks_at, told):  # noqa: ARG001
    observer = make(observers, silent_controller())
    for requests, is_ending in [((), False), (("end-l",), True), ((), True)]:
        looks_at(requests=requests)
        assert observer.look()
        assert observer.view().is_ending == is_ending


def test_a_failed_group_leaves_no_dead_node_to_the_next_one(observers, looks_at, told):  # noqa: ARG001
    """Nodes die together, and the group has workers on one of them. Only that one explains its failure."""
    failures = []
    looks_at(silent="bc")
    observer = make(
        observers, silent_controller(failed=lambda dead, blamed, *_: failures.append((dead, blamed))), room="abcd"
    )
    assert observer.look()
    observer.failed(group_on("ab"), {0: RuntimeError("connection reset")})
    assert failures == [({"b"}, frozenset())]
    assert observer.leaving == {"b", "c"}


def test_a_start_that_failed_is_a_failure_on_the_nodes_that_do_not_answer(observers, looks_at, told):  # noqa: ARG001
    failures = []
    looks_at(silent="b")
    observer = make(observers, silent_controller(failed=lambda *failure: failures.append(failure)), room="ab")
    assert observer.look()
    observer.start_failed(RuntimeError("a line\nno worker"))
    assert failures == [({"b"}, frozenset(), StartFailed(error="no worker"))]


def test_a_mistake_in_the_users_code_ends_the_run_and_its_whole_text_is_published(observers, looks_at, told):
    """Ray passes on the last 300 characters of a text."""
    looks_at()
    controller = elastic_controller()
    observer = make(observers, controller)
    controller.started(("a", "b"))
    error = CodeError(kind="NameError", message="x" * 290, place="/home/me/loop.py:7, in train", traceback="")
    with pytest.raises(TrainingFailed):
        observer.failed(group_on("ab"), {1: UserCodeFailed(error, "code", 0)})
    text = f"worker 1 on node b: train() raised NameError: {'x' * 290} (/home/me/loop.py:7, in train). planner does"
    assert told["verdict-l"].startswith(text)


def test_a_group_loads_until_rank_0_has_stepped(observer, told):
    """Reports of other ranks say nothing."""
    observer.started(group_on("ab"))
    observer.hear(poll({"step": 0}, rank=1))
    assert told["state-l"] == "2 workers started, loading"
    observer.hear(poll({"step": 0}))
    assert told["state-l"] == ""


@pytest.mark.parametrize("facts", [{}, {"is_held": False}, {"is_held": True}])
def test_a_worker_that_parks_says_whether_its_step_is_only_in_memory(observers, told, facts):  # noqa: ARG001
    heard = []
    controller = silent_controller(committed=lambda *times, is_held: heard.append((times, is_held)))
    observer = make(observers, controller)
    observer.hear(poll({PARKED: True, "commit_s": 0.5, "durable_after_s": 0.7, **facts}))
    observer.hear(poll({PARKED: True, "commit_s": 9.0, "durable_after_s": 9.0, "is_held": True}, rank=1))
    assert heard == [((0.5, 0.7), facts.get("is_held", False))]
    assert observer.view().parked == {0, 1}


@pytest.mark.usefixtures("told")
def test_the_observer_looks_at_once_when_all_have_parked(observers, looks_at):
    """Otherwise each half second."""
    looks_at()
    observer = make(observers, silent_controller(committed=lambda *_, **__: None))
    assert observer.is_due(1)
    observer.look()
    assert not observer.is_due(1)
    observer.hear(poll({PARKED: True, "commit_s": 0.5, "durable_after_s": 0.7}))
    assert observer.is_due(1)
    assert not observer.is_due(2)


def test_a_new_group_begins_without_what_the_last_one_left(observer):
    """Without a group, the view has nothing of the last one either."""
    observer.started(group_on("ab"))
    observer._parked.add(1)
    observer._worker_progress._counts[0] = 7
    assert observer.view(workers_on("ab")).progress == 7
    observer.set_group(None)
    assert (observer.view().parked, observer.view().progress, observer.group) == (frozenset(), 0, None)


def test_a_stop_may_trust_in_keepers_if_the_census_says_so(observer):
    asked = []
    observer._worker_progress = SimpleNamespace(total=lambda _workers: 0)
    workers = workers_on("ab")
    assert not observer.view(workers).can_hold
    observer.census = SimpleNamespace(can_hold=lambda nodes: asked.append(nodes) or True)
    assert observer.view(workers).can_hold
    assert asked == [("a", "b")]


def test_a_group_that_starts_is_noted_before_its_workers_ask(observer):
    begun = []
    observer.census = SimpleNamespace(mark_start=lambda: begun.append(True))
    observer.started(group_on("ab"))
    assert begun == [True]


def test_workers_are_kept_off_bad_nodes_if_there_is_room_without_them(observers, looks_at, told):  # noqa: ARG001
    """Two others are enough for two workers, and not for three."""
    looks_at(silent="c")
    observer = make(observers, silent_controller(bad_nodes=("b",)), room="abcd")
    assert observer.look()
    assert observer.label_selectors("a", 2) == [{"ray.io/node-id": "!in(b)"}] * 2
    assert observer.label_selectors("a", 3) is None
    observer._probe(set("c"))
    assert observer.label_selectors((), 2) == [{"ray.io/node-id": "!in(b,c)"}] * 2


def test_with_a_floor_each_worker_asks_for_the_kind_of_its_node(observers, looks_at, told):  # noqa: ARG001
    """On-demand places first. A worker without such a label could take the place that another one needs."""
    looks_at(markets={"a": "on-demand", "b": "spot", "d": "on-demand"})
    observer = make(observers, silent_controller(floor=1), room="abcd")
    assert observer.look()
    assert observer.view().markets == {"a": "on-demand", "b": "spot", "d": "on-demand"}
    assert observer.num_on_demand == 2
    on_demand, other = {"ray.io/market-type": "on-demand"}, {"ray.io/market-type": "!on-demand"}
    assert observer.label_selectors((), 4) == [on_demand, on_demand, other, other]
    assert observer.label_selectors("ab", 2) == [on_demand, other]
    assert observer.label_selectors((), 1) == [on_demand]
    assert observer.kept_workers("bcd", 2) == [0, 2]


def test_without_a_floor_labels_do_not_count(observers, looks_at, told):  # noqa: ARG001
    looks_at(markets={"a": "on-demand", "b": "spot"})
    observer = make(observers, silent_controller(), room="ab")
    assert observer.look()
    assert observer.num_on_demand == 0
    assert observer.label_selectors((), 2) is None
    assert observer.kept_workers("ba", 1) == [0]


def lacking(device="CPU", place="forward", max_micro=4):
    facts = {"max_tokens": None, "tokens": None, "longest": None, "asked_bytes": None, "error": "no room"}
    return memory_errors.OutOfMemory(
        memory_errors.MemoryFacts(device=device, place=place, max_micro=max_micro, samples=max_micro, **facts)
    )


def test_workers_without_memory_lower_the_cap_and_the_run_keeps_it(observers, looks_at, told, tmp_path):
    """Not that of the worker whose collective broke. The next group is told, and later launches."""
    looks_at()
    controller, storage = elastic_controller(), Storage(str(tmp_path))
    observer = make(observers, controller, run=str(tmp_path))
    controller.started(("a", "b", "c"))
    errors = {0: RuntimeError("connection reset"), 1: lacking("NVIDIA A"), 2: lacking("NVIDIA A")}
    observer.failed(group_on("abc"), errors)
    (lowered,) = controller.caps.lowered
    assert (lowered.device, lowered.now) == ("NVIDIA A", Caps(max_micro=2))
    assert controller.bad_nodes == ()
    assert read_caps(storage) == controller.caps
    assert told["state-l"].startswith("worker 1 on node b, NVIDIA A: out of memory in the forward pass. On NVIDIA A")
    observer._reporter.tell_next_group(60.0)
    assert caps_of_text(told["caps-l"]) == controller.caps


def test_a_run_that_cannot_be_lowered_ends_with_a_sentence(observers, looks_at, told):
    looks_at()
    controller = elastic_controller(max_micro=1)
    observer = make(observers, controller)
    controller.started(("a", "b"))
    with pytest.raises(TrainingFailed, match="with one sample in a micro-batch"):
        observer.failed(group_on("ab"), {0: lacking(max_micro=1)})
    assert "with one sample in a micro-batch. To need less memory, set" in told["verdict-l"]


def test_a_folder_that_cannot_be_written_ends_no_run(observers, looks_at, told, tmp_path):  # noqa: ARG001
    """A later launch would lower the caps again."""
    looks_at()
    (tmp_path / "file").write_text("")
    observer = make(observers, controller := elastic_controller(), run=str(tmp_path / "file"))
    controller.started(("a", "b"))
    observer.failed(group_on("ab"), {0: lacking()})
    assert controller.caps.lowered


@pytest.mark.parametrize("found", ["", "{", None])
def test_a_worker_that_learns_of_no_caps_trains_with_the_jobs(monkeypatch, found):
    """The store has none, or others, or does not answer."""

    def kv_get(key):
        if found is None:
            raise ConnectionError(key)
        return found

    monkeypatch.setattr(worker, "kv_get", kv_get)
    assert worker.lowered_caps("l") is None


def test_a_later_launch_begins_with_the_kept_caps(tmp_path):
    """And with none if they cannot be read."""
    run = RunFolder(Storage(str(tmp_path)))
    assert launch._lowered_caps(run) is None
    keep_caps(run.storage, found := LoweredCaps(of=Caps(max_micro=4)))
    assert launch._lowered_caps(run) == found
    (tmp_path / CAPS_FILE).write_text("{")
    assert launch._lowered_caps(run) is None
