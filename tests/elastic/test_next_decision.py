"""What the board says of the next decision: every state has a text, and what is announced for a time happens then."""

import math
from dataclasses import replace

import pytest
from fixed_examples import examples
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from simulated_cluster import Cluster
from test_states import LOOK_S, Walk

from planner.elastic.mistakes import GaveUp
from planner.elastic.next_decision import next_decision, worker_states
from planner.elastic.resize_choice import first_step_due_s
from planner.elastic.states import Idle, Running, Stopping, Waiting, Warming
from planner.elastic.step import step
from planner.elastic.view import View
from planner.events.outlook import AwaitsNewcomers, AwaitsParked, NoResize, NoticeRuns, Silence, WillStart
from planner.events.sizing import UsesAll, Waited
from planner.events.stopping import AwaitsFirstStep, WaitsForRoom
from planner.wording.event_text import text_of_all

ANNOUNCED: set[type] = set()
SAID: set[type] = set()
# Further away than this, a test would take thousands of looks.
_NEAR_S = 90.0


class AnnouncedWalk(Walk):
    """After each look the next decision is asked for, and if it has a time, time passes until then."""

    def look_once(self):
        act = super().look_once()
        if not self.is_over and act.kind == "nothing":
            state, view = self.controller.state, self.view()
            found = next_decision(state, view, self.now)
            assert found.events
            text = text_of_all(found.events)
            assert text
            assert "\n" not in text
            assert found == next_decision(state, view, self.now)
            assert len(worker_states(state, view)) == len(view.nodes)
            SAID.add(type(state))
            if self.now < found.due_s < self.now + _NEAR_S:
                ANNOUNCED.add(type(state))
                self.check_due(state, view, found.due_s)
        return act

    def check_due(self, state, view, due_s):
        """Looks every half second, as the policy does, while the workers go on and nothing else changes."""
        now_s, acted = self.now, False
        is_silent = now_s - state.group.seen_s > 15 if isinstance(state, Running | Warming) else False
        while not acted:
            assert now_s <= due_s, f"{state} did not act at {due_s}"
            now_s = min(now_s + LOOK_S, due_s) if now_s < due_s else due_s + LOOK_S
            gone_s = now_s - self.now
            later = replace(
                view,
                draining={node: max(in_s - gone_s, 0.0) for node, in_s in view.draining.items()},
                progress=view.progress + (0 if is_silent else round(gone_s / LOOK_S)),
            )
            try:
                state, act = step(state, later, now_s)
            except GaveUp:
                return
            acted = act.kind != "nothing"
        assert now_s >= due_s - LOOK_S, f"{act} came {due_s - now_s} s before its time"


def test_what_is_announced_for_a_time_happens_then():
    """In every state that a walk reaches. Each of them has a text."""
    SAID.clear()
    ANNOUNCED.clear()
    run_state_machine_as_test(AnnouncedWalk, settings=settings(examples(300), stateful_step_count=40))
    assert {Idle, Running, Warming, Stopping, Waiting} == SAID
    assert {Running, Warming, Stopping} <= ANNOUNCED


def test_a_time_that_is_due_by_a_rounding_error_is_announced():
    """Found in CI: 1.0 s after a notice, floats say that a little less than 1 s has passed."""
    walk = AnnouncedWalk()
    walk.launch(global_batch=24, least=1, more=6, eager=False, grow_s=0.0, can_hold=False)
    walk.time_passes(looks=1, seconds=20.0)
    walk.a_step_is_done(commit_s=0.0, in_flight=0, seconds=0.1)
    walk.notice(in_s=5.0, node="n0")
    walk.time_passes(looks=1, seconds=2.0)
    walk.look()
    walk.look()


@pytest.mark.parametrize("end", ["a step", "never"])
def test_newcomers_that_wait_for_the_first_step_are_announced(end):
    """Until they no longer wait. If the group never does it, it is started again with them."""
    walk = AnnouncedWalk()
    walk.launch(global_batch=24, least=1, more=6, eager=False, grow_s=1.4, can_hold=False)
    walk.look()
    walk.nodes_come(seconds=100.0)
    walk.newcomers_change(become="ready")
    assert walk.awaits_first_step
    due_s = first_step_due_s(walk.controller.state)
    silent = next_decision(walk.controller.state, walk.view(), walk.now)
    assert [type(event) for event in silent.events] == [Silence]
    walk.progress += 1
    walk.look()
    found = next_decision(walk.controller.state, walk.view(), walk.now)
    assert [type(event) for event in found.events] == [AwaitsFirstStep]
    assert found.due_s == pytest.approx(due_s, abs=0.01)
    assert silent.due_s == pytest.approx(due_s, abs=0.01)
    if end == "a step":
        walk.a_step_is_done(commit_s=0.0, in_flight=0, seconds=0.1)
        assert isinstance(walk.controller.state, Stopping)
        return
    for _ in range(30):
        walk.progress += 1
        walk.time_passes(looks=1, seconds=20.0)
    assert len(walk.group) > 3


def said(cluster):
    """The next decision of a simulated cluster, as its last tick left it."""
    return next_decision(cluster.controller.state, cluster.view, cluster.now)


class Seen(Cluster):
    """Keeps the view of the last tick, with what the act of that tick changed."""

    def tick(self):
        super().tick()
        self.view = View(
            room={node: 1 for node in self.nodes if node not in self.draining},
            draining={node: max(at - self.now, 0.0) for node, at in self.draining.items()},
            nodes=self.group,
            newcomers=self.newcomers,
            progress=int(self.units),
            is_ending=self.is_ending,
        )


def test_too_little_room_is_waited_for():
    """Without a group: the numbers of the job and of the cluster."""
    cluster = Seen(1, least=2).run(5)
    assert said(cluster).events == (WaitsForRoom(room=1, least=2),)
    assert said(cluster).due_s == math.inf


def test_a_run_that_has_all_says_so():
    """With the reason of `planner.plan.revise`."""
    cluster = Seen(3, most=3).run(30)
    assert said(cluster).events == (NoResize(reason=UsesAll(size=3)),)


def test_newcomers_are_waited_for():
    """With the sizes, and how long they may take."""
    cluster = Seen(2).run(30)
    cluster.add()
    while not isinstance(cluster.controller.state, Warming):
        cluster.tick()
    assert said(cluster).events == (AwaitsNewcomers(size=2, to=3, so_far_s=0, most_s=60),)
    assert said(cluster).due_s == pytest.approx(cluster.now + 60, abs=0.1)


def test_a_notice_names_who_goes_and_how_many_continue():
    """While more notices may follow the first."""
    cluster = Seen(3).run(30)
    cluster.drain("n2", 600)
    cluster.tick()
    (found,) = said(cluster).events
    assert isinstance(found, NoticeRuns)
    assert (found.leaving, found.size, found.left_s, found.to, found.in_memory) == (1, 3, 599.75, 2, False)
    assert found.stops_in_s == pytest.approx(1, abs=0.01)
    assert worker_states(cluster.controller.state, cluster.view) == ("training", "training", "leaving")
    while not isinstance(cluster.controller.state, Stopping):
        cluster.tick()
    (found,) = said(cluster).events
    assert isinstance(found, AwaitsParked)
    assert (found.parked, found.size, found.then) == (0, 3, (WillStart(size=2, planned=True),))


def test_a_short_notice_says_until_when_it_is_used():
    """When the group stops if nothing else happens."""
    cluster = Seen(3).run(30)
    cluster.drain("n2", 120)
    cluster.run(10)
    found = said(cluster)
    assert cluster.now + 90 < found.due_s < cluster.now + 110
    while not isinstance(cluster.controller.state, Stopping):
        cluster.tick()
    assert cluster.now == pytest.approx(found.due_s, abs=cluster.step_s + 0.5)


def test_a_notice_that_leaves_too_few_says_until_when_it_trains():
    """It trains on, and commits in the last moment."""
    cluster = Seen(3, least=3).run(30)
    cluster.drain("n2", 60)
    cluster.tick()
    found = said(cluster)
    assert [(event.room, event.to) for event in found.events] == [(2, None)]
    assert found.events[0].stops_in_s == pytest.approx(found.due_s - cluster.now)
    assert cluster.now + 30 < found.due_s < cluster.now + 60


def test_a_group_without_progress_is_given_up_at_a_time():
    """The limit is the one by which the controller ends it."""
    cluster = Seen(2).run(30)
    cluster.hung = True
    cluster.run(20)
    found = said(cluster)
    assert [type(event) for event in found.events] == [Silence]
    assert found.events[0].silence_s == pytest.approx(20, abs=0.5)
    while isinstance(cluster.controller.state, Running) and cluster.now < found.due_s + 1:
        cluster.tick()
        if len(cluster.sizes) > 1:
            break
    assert cluster.now == pytest.approx(found.due_s, abs=1)


def test_the_time_without_room_is_told_once():
    """To the group that starts after it, in seconds."""
    cluster = Seen(1, least=2).run(20)
    cluster.add()
    cluster.run(20)
    assert cluster.told(Waited) == [Waited(waited_s=pytest.approx(20, abs=0.5))]


def test_a_wait_of_less_than_a_second_is_part_of_a_pause():
    """It is no event."""
    cluster = Seen(1, least=2).run(0.75)
    cluster.add()
    assert cluster.run(20).sizes == [2]
    assert cluster.told(Waited) == []


def test_the_nodes_that_leave_are_looked_up_once():
    """Of one view: with thousands of nodes, a look at each would hold up the controller for seconds."""
    view = View(room={}, draining={"a": 1.0}, nodes=("a", "b"))
    assert view.leaving is view.leaving
    assert view.leaving == {"a"}
