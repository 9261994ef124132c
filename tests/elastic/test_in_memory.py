"""Stops whose last step stays in the keepers' memory: when they are chosen, and that nothing is lost by them."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import Holding

from planner.elastic.states import Ending, Idle, Running, Stopping, Waiting
from planner.elastic.stopping import grace_s, hand_over_s, obstacle, stop_s
from planner.elastic.view import View
from planner.events.failures import NodesLost
from planner.events.outlook import NoticeRuns, StopsDurably, StopsInMemory, StopsWithoutGroup
from planner.events.stopping import (
    AwaitsCommit,
    BecomesDurable,
    EndsWithLoss,
    HandsOver,
    HeldStepLost,
    Notice,
    NoticeTooShort,
    NotParked,
)


def kinds(cluster):
    """For each stop, whether it was in memory."""
    return [in_memory for in_memory, _ in cluster.stops]


def until(cluster, condition):
    while not condition():
        assert cluster.now < 10_000
        cluster.tick()
    return cluster


def await_first_write(cluster):
    """Until what a group began with is durable."""
    return until(cluster, lambda: cluster.write is None)


class TestNoticesAndGrowth:
    def test_a_notice_does_not_wait_for_storage(self):
        """A commit takes 20 s. The next group starts 2 s after the stop: a step and a copy."""
        cluster = Holding(4).run(30)
        done = cluster.step
        cluster.drain("n3", 600)
        cluster.run(6)
        assert (cluster.sizes, kinds(cluster)) == ([4, 3], [True])
        assert cluster.step >= done
        assert cluster.recomputed == 0
        assert cluster.told(HandsOver) == [HandsOver(allowed_s=None)]

    def test_a_growth_does_not_wait_for_storage(self):
        cluster = Holding(2).run(30)
        cluster.add()
        until(cluster, lambda: cluster.sizes == [2, 3])
        assert kinds(cluster) == [True]
        stopped, resized = (at for at, act in cluster.acts if act.kind in {"stop", "resize"} and at > 1)
        assert resized - stopped < cluster.commit_s / 4

    def test_without_a_keeper_on_each_node_a_stop_is_durable(self):
        cluster = Holding(4)
        cluster.can_hold = False
        cluster.run(30)
        cluster.drain("n3", 600)
        cluster.run(100)
        assert (cluster.sizes, kinds(cluster)) == ([4, 3], [False])
        assert cluster.committed > 0

    def test_a_short_notice_is_enough_for_a_hand_over(self):
        """It is too short for a commit: the ledger says no such thing."""
        cluster = Holding(4, write_s=200.0).run(30)
        cluster.drain("n3", 28)
        cluster.run(27)
        assert kinds(cluster) == [True]
        assert cluster.recomputed == 0
        assert not cluster.told(NoticeTooShort)

    def test_two_short_notices_are_one_resize(self):
        """There is time to wait for the second one: no commit must fit into the notice."""
        cluster = Holding(5, write_s=200.0).run(30)
        for node in ("n4", "n3"):
            cluster.drain(node, 28)
            cluster.run(0.75)
        cluster.run(20)
        assert cluster.sizes == [5, 3]

    def test_a_notice_that_names_the_present_is_tried_in_memory(self):
        """The machine lives on for some seconds. A commit of 200 s would not even be tried."""
        cluster = Holding(4, write_s=200.0).run(30)
        cluster.lives_on_s = 6.0
        cluster.drain("n3", 0)
        cluster.run(10)
        assert (cluster.sizes, kinds(cluster)) == ([4, 3], [True])
        assert cluster.recomputed == 0

    def test_where_no_other_group_fits_the_stop_is_durable(self):
        """The copies would wait for a group that may never come."""
        cluster = Holding(2, least=2, write_s=5.0).run(30)
        cluster.drain("n1", 60)
        cluster.run(59)
        assert kinds(cluster) == [False]
        assert isinstance(cluster.controller.state, Waiting)
        assert cluster.committed == cluster.step > 0

    def test_the_price_of_a_resize_has_the_copy_and_no_commit(self):
        """1 s of pause and 0.25 s of copy. What a commit takes stays known."""
        cluster = Holding(4)
        await_first_write(cluster.run(30))
        cluster.drain("n3", 600)
        cluster.run(15)
        history = cluster.controller.history
        assert history.cost.shrink_s == pytest.approx(1.25, abs=0.5)
        assert history.commit.seconds == 20.0
        assert history.copy.seconds == 0.25
        assert history.hand_over_s == pytest.approx(1.0, abs=0.5)


class TestDurableProgress:
    """Between two hand-overs from memory something must become durable, unless a notice leaves no time for that."""

    def test_newcomers_wait_for_the_commit_in_flight_while_training_goes_on(self):
        cluster = Holding(4, most=8).run(30)
        cluster.drain("n3", 600)
        cluster.run(6)
        assert cluster.write is not None
        cluster.add(2)
        until(cluster, lambda: len(cluster.sizes) == 3)
        assert kinds(cluster) == [True, True]
        assert cluster.committed > 0
        assert len(cluster.told(AwaitsCommit)) == 1

    def test_newcomers_do_not_wait_for_ever(self):
        """The commit in flight hangs: after a minute the stop is durable, which waits for it."""
        cluster = Holding(4, most=8).run(30)
        cluster.drain("n3", 600)
        cluster.run(6)
        cluster.write = (cluster.write[0], math.inf)
        cluster.add(2)
        until(cluster, lambda: len(cluster.stops) == 2)
        assert kinds(cluster) == [True, False]

    def test_a_second_notice_with_time_for_a_commit_is_durable(self):
        cluster = Holding(5).run(30)
        cluster.drain("n4", 600)
        cluster.run(6)
        cluster.drain("n3", 600)
        cluster.run(60)
        assert (cluster.sizes, kinds(cluster)) == ([5, 4, 3], [True, False])
        assert [notice.obstacle for notice in cluster.told(Notice)] == [None, "nothing_durable"]

    def test_a_second_notice_without_time_for_a_commit_stays_in_memory(self):
        """A commit would be tried in vain."""
        cluster = Holding(5, write_s=300.0).run(30)
        for node in ("n4", "n3"):
            cluster.drain(node, 28)
            cluster.run(15)
        cluster.run(10)
        assert (cluster.sizes, kinds(cluster)) == ([5, 4, 3], [True, True])
        assert cluster.recomputed == 0


class TestTheDriverEndsTheRun:
    def test_a_stop_that_is_under_way_becomes_durable(self):
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: isinstance(cluster.controller.state, Stopping))
        cluster.is_ending = True
        until(cluster, lambda: isinstance(cluster.controller.state, Ending))
        assert kinds(cluster) == [True, False]
        assert cluster.committed == cluster.step > 0
        assert cluster.sizes == [4]

    def test_a_step_that_is_only_in_memory_is_made_durable_by_another_group(self):
        """All had parked when the driver asked."""
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.parked_at is not None)
        while cluster.now + cluster.tick_s < cluster.parked_at:
            cluster.tick()
        cluster.is_ending = True
        done = cluster.step
        cluster.holds = True
        cluster.controller.state = replace(cluster.controller.state, in_memory=False)  # the workers have not heard it
        until(cluster, lambda: isinstance(cluster.controller.state, Ending))
        assert cluster.sizes == [4, 3]
        assert kinds(cluster) == [True, False]
        assert cluster.committed == cluster.step >= done > 0

    def test_a_group_that_has_just_begun_from_memory_is_stopped_durably(self):
        """Without a step of its own, it would seem that nothing is lost."""
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.sizes == [4, 3])
        cluster.is_ending = True
        until(cluster, lambda: isinstance(cluster.controller.state, Ending))
        assert kinds(cluster) == [True, False]
        assert cluster.committed == cluster.step > 0
        assert not cluster.told(EndsWithLoss, HeldStepLost)

    def test_another_group_tries_again_if_that_one_does_not_park(self):
        """Its node goes. The memory of the others still has the step."""
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.sizes == [4, 3])
        cluster.is_ending = cluster.hung = True
        cluster.lives_on_s = math.inf
        cluster.drain("n2", 5)
        until(cluster, lambda: isinstance(cluster.controller.state, Ending))
        assert cluster.sizes == [4, 3, 2]
        assert cluster.committed == cluster.step > 0

    def test_another_group_tries_again_if_that_one_fails(self):
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.sizes == [4, 3])
        cluster.is_ending = True
        cluster.fail(blamed=["n0"])
        until(cluster, lambda: isinstance(cluster.controller.state, Ending))
        assert cluster.sizes == [4, 3, 3]
        assert cluster.committed == cluster.step > 0

    def test_without_room_for_a_group_it_says_what_is_lost(self):
        """Two nodes vanish after all have parked, and then the driver ends the run."""
        cluster = Holding(4, least=3).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.parked_at is not None)
        while cluster.now + cluster.tick_s < cluster.parked_at:
            cluster.tick()
        cluster.drain("n2", 60)
        cluster.holds = True
        cluster.controller.state = replace(cluster.controller.state, in_memory=False)
        cluster.run(2)
        assert isinstance(cluster.controller.state, Waiting)
        cluster.is_ending = True
        cluster.run(2)
        assert isinstance(cluster.controller.state, Ending)
        assert [(lost.step, lost.is_sure) for lost in cluster.told(EndsWithLoss)] == [(cluster.step, True)]

    def test_a_run_that_waits_goes_on_from_memory_when_nodes_come(self):
        cluster = Holding(4, least=3).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: cluster.parked_at is not None)
        while cluster.now + cluster.tick_s < cluster.parked_at:
            cluster.tick()
        cluster.drain("n2", 60)
        cluster.holds = True
        cluster.controller.state = replace(cluster.controller.state, in_memory=False)
        cluster.run(2)
        cluster.add()
        cluster.run(10)
        assert cluster.sizes == [4, 3]
        assert cluster.recomputed == 0


def test_a_keeper_that_dies_in_the_midst_of_a_stop_makes_it_durable():
    cluster = Holding(4, write_s=5.0).run(30)
    cluster.drain("n3", 600)
    until(cluster, lambda: isinstance(cluster.controller.state, Stopping))
    cluster.can_hold = False
    cluster.run(20)
    assert kinds(cluster) == [True, False]
    assert cluster.committed > 0
    assert cluster.told(BecomesDurable) == [BecomesDurable(obstacle="no_keeper")]


def test_a_second_notice_that_is_too_short_makes_a_stop_durable():
    """A commit is quicker than a hand-over here, and the second node goes soon. The first notice left time for both."""
    cluster = Holding(4, copy_s=9.0, write_s=1.0).run(30)
    cluster.drain("n3", 300)
    until(cluster, lambda: isinstance(cluster.controller.state, Stopping))
    assert kinds(cluster) == [True]
    cluster.drain("n2", 8)
    cluster.run(3)
    assert kinds(cluster) == [True, False]
    assert cluster.told(BecomesDurable) == [BecomesDurable(obstacle="notice_too_short")]


def test_a_stop_in_memory_that_nobody_answers_ends():
    """The node goes. The others start again from what there is."""
    cluster = Holding(4).run(30)
    cluster.hung, cluster.lives_on_s = True, math.inf
    cluster.drain("n3", 30)
    cluster.run(60)
    assert cluster.sizes == [4, 3]
    assert [told.from_memory for told in cluster.told(NotParked)] == [True]


def test_a_lost_node_says_where_training_resumes():
    cluster = Holding(4).run(30)
    cluster.kill("n3")
    cluster.run(10)
    assert cluster.told(NodesLost) == [NodesLost(nodes=1, told=0, from_memory=True)]


def test_a_node_that_is_lost_before_the_next_group_starts_does_not_hide_the_copies():
    """The last group left its step in memory. The next one did not start."""
    cluster = Holding(4).run(30)
    cluster.drain("n3", 30)
    until(cluster, lambda: cluster.sizes == [4, 3])
    cluster.controller.state = Idle(known=cluster.controller.state.known)
    cluster.nodes.remove("n1")
    cluster.fail(dead={"n1"})
    cluster.run(10)
    assert cluster.told(NodesLost) == [NodesLost(nodes=1, told=0, from_memory=True)]


class TestADriverThatStopsAfterADeath:
    """Copies of the steps since the last commit may be whole in the memory of the nodes that are left."""

    @pytest.fixture
    def died(self):
        """A group of which a node died. Its last step has copies, and nothing is durable."""
        cluster = Holding(4).run(30)
        cluster.newest_held = cluster.step
        cluster.kill("n3")
        return cluster

    def test_another_group_commits_what_is_in_memory(self, died):
        done = died.step
        died.is_ending = True
        died.run(200)
        assert isinstance(died.controller.state, Ending)
        assert died.committed >= done > 0
        assert died.recomputed == 0

    def test_the_new_group_is_not_ended_before_its_first_step(self, died):
        """It has reported nothing yet, and still has something to save."""
        done = died.step
        until(died, lambda: isinstance(died.controller.state, Running))
        died.is_ending = True
        died.run(200)
        assert isinstance(died.controller.state, Ending)
        assert died.committed >= done

    def test_without_room_for_a_group_it_is_said_what_is_lost(self):
        cluster = Holding(2, least=2).run(30)
        done = cluster.step
        cluster.kill("n1")
        cluster.is_ending = True
        cluster.run(20)
        assert isinstance(cluster.controller.state, Ending)
        assert cluster.told(EndsWithLoss) == [EndsWithLoss(step=done, is_sure=False, durable_step=0)]

    def test_a_group_without_keepers_leaves_nothing_behind(self):
        cluster = Holding(4)
        cluster.can_hold = False
        cluster.run(30)
        cluster.kill("n3")
        cluster.is_ending = True
        cluster.run(5)
        assert isinstance(cluster.controller.state, Ending)

    def test_a_group_that_trains_again_has_its_own_steps(self, died):
        died.run(30)
        assert died.controller.state.known.maybe_held_step == 0


def test_copies_that_were_lost_are_no_longer_waited_for():
    """The next group began before the held step. That is said, and the driver need not wait."""
    cluster = Holding(4, write_s=40.0)
    cluster.can_hold = False
    cluster.run(20).drain("n3", 100)
    until(cluster, lambda: cluster.sizes == [4, 3])
    cluster.can_hold = True
    durable = cluster.committed
    cluster.run(20).drain("n2", 30)
    cluster.is_lossy = True
    until(cluster, lambda: cluster.controller.state.known.held_only_step > 0)
    held = cluster.controller.state.known.held_only_step
    cluster.run(10)
    assert cluster.recomputed == held - durable > 0
    assert cluster.told(HeldStepLost) == [HeldStepLost(step=held, resumed_step=durable)]
    assert cluster.controller.state.known.held_only_step == 0


def known_of(*, durable=100, first=100, copy_s=0.5, hand_over_s=1.5, commit_s=10.0, steps=3, held=0):
    """What the controller knows of two workers that began with step `first` and did steps of 2 s."""
    controller = Holding(2).controller
    controller.started(("a", "b"))
    for number in range(first, first + steps):
        controller.reported(
            {
                "step": number,
                "total_steps": 1000,
                "world_size": 2,
                "seconds": 2.0,
                "held_step": held or durable,
                "step_cost": 8,
                "num_again": 0,
                "copied_step": 0,
                "durable_step": durable,
                "is_last": False,
                "commit_s": commit_s,
                "eval_s": 4.0,
            }
        )
    known, group = controller.state.known, controller.state.group
    if copy_s:
        known = replace(known, history=known.history.after_copy(2, copy_s).after_hand_over(hand_over_s))
    return known, group


def test_what_a_hand_over_is_allowed():
    """Two steps, 1.5 evaluations, and twice what the last copy and the usual pause took. Fewer workers copy more."""
    known, group = known_of()
    assert hand_over_s(known, group) == pytest.approx(4 + 6 + 2 * (0.5 + 1.5))
    assert hand_over_s(known, replace(group, nodes=("a",))) - hand_over_s(known, group) > 1.0
    history = known.history
    for pause_s in (1.5, 9.0):
        history = history.after_hand_over(pause_s)
    assert history.hand_over_s == 1.5  # the median


def test_before_the_first_hand_over_it_is_careful():
    assert hand_over_s(*known_of(copy_s=0)) == pytest.approx(4 + 6 + 20)


def test_a_copy_is_no_commit():
    """Its seconds say nothing about storage."""
    known, _ = known_of()
    assert known.history.commit_s(2) == 10.0
    assert [known.history.copy_s(size) for size in (4, 2, 1)] == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("facts", "view", "room", "reason"),
    [
        ({}, {}, 2, None),
        ({}, {"can_hold": False}, 2, "no_keeper"),
        ({}, {"is_ending": True}, 2, "driver_ends"),
        ({}, {}, 0, "no_other_group"),
        ({"durable": 90}, {}, 2, "nothing_durable"),
        ({"durable": 101}, {}, 2, None),
        ({"steps": 0}, {}, 2, "nothing_durable"),
        # A stop takes 25 s, and 30 s with a commit in flight. A hand-over takes 14 s.
        ({}, {"draining": {"a": 26.0}}, 2, None),
        ({"durable": 90}, {"draining": {"a": 26.0}}, 2, "nothing_durable"),
        ({"durable": 90, "held": 101}, {"draining": {"a": 26.0}}, 2, None),
        ({"durable": 90}, {"draining": {"a": 20.0}}, 2, None),
        ({}, {"draining": {"a": 13.0}}, 2, None),
        ({"commit_s": 1.0}, {"draining": {"a": 13.0}}, 2, "notice_too_short"),
        ({"commit_s": 1.0}, {"draining": {"a": 3.0}}, 2, "commit_is_quicker"),
    ],
)
def test_why_a_stop_must_be_durable(facts, view, room, reason):
    """None: its last step may stay in memory."""
    view = View(**{"room": {}, "draining": {}, "nodes": ("a", "b"), "can_hold": True, **view})
    assert obstacle(*known_of(**facts), view, room) == reason


def test_the_figures_of_that_table():
    assert stop_s(*known_of(durable=90)) == pytest.approx(25)
    assert stop_s(*known_of(durable=90, held=101)) == pytest.approx(30)
    assert hand_over_s(*known_of()) == pytest.approx(14)


def test_after_the_deadline_parking_in_memory_is_waited_for_by_its_own_time():
    """A commit of 200 s would not be waited for at all."""
    known, group = known_of(commit_s=200.0)
    assert grace_s(known, group) == 0.0
    assert grace_s(known, group, in_memory=True) == 0.0  # two steps and an evaluation: 11 s
    quick = replace(known, history=replace(known.history, eval_s=0.0))
    assert grace_s(quick, group, in_memory=True) == 10.0
    assert grace_s(known_of(copy_s=0)[0], group, in_memory=True) == 10.0


class TestWhatAStopWaitsFor:
    def stopping(self, **facts):
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        until(cluster, lambda: isinstance(cluster.controller.state, Stopping))
        state = cluster.controller.state
        cluster.controller.state = replace(state, group=replace(state.group, **facts))
        return cluster

    def test_a_stop_says_that_nothing_waits_for_storage(self):
        cluster = self.stopping()
        assert cluster.controller.stop == StopsInMemory(done_step=None, copy_s=None)
        assert isinstance(cluster.controller.driver_stop, StopsDurably)

    def test_it_says_how_long_the_last_copy_took(self):
        cluster = self.stopping()
        state = cluster.controller.state
        known = replace(state.known, history=state.known.history.after_copy(4, 0.5))
        cluster.controller.state = replace(state, known=known)
        assert cluster.controller.stop == StopsInMemory(done_step=None, copy_s=0.5)

    def test_after_the_last_step_only_the_copy_is_waited_for(self):
        cluster = self.stopping(is_last=True, num_done=20)
        waits = StopsInMemory(done_step=20, copy_s=None)
        assert cluster.controller.last_step == cluster.controller.stop == waits

    def test_what_comes_next_is_said_as_it_will_be(self):
        """By the live status."""
        cluster = Holding(4).run(30)
        cluster.drain("n3", 600)
        state = cluster.controller.state
        view = View(
            room={"n0": 1, "n1": 1, "n2": 1}, draining={"n3": 60.0}, nodes=cluster.group, can_hold=True, progress=10**6
        )
        (found,) = cluster.controller.next_decision(view).events
        assert isinstance(state, Running)
        assert isinstance(found, NoticeRuns)
        assert (found.leaving, found.size, found.left_s, found.to, found.in_memory) == (1, 4, 60, 3, True)


SECONDS = st.floats(1, 60)
WEATHER = st.lists(
    st.tuples(st.sampled_from(["add", "drain", "drain soon", "kill", "fail", "forget", "keepers", "nothing"]), SECONDS),
    min_size=1,
    max_size=25,
)


class Judged(Holding):
    """What must hold at each act, whatever the weather."""

    def act(self, act):
        if act.kind == "stop":
            self.judge_stop(act.in_memory)
        if act.kind == "end":
            room = len([node for node in self.nodes if node not in self.draining])
            is_lost = self.begins_with < self.step
            assert self.committed == self.begins_with or is_lost or room < self.least, "a held step was left behind"
        assert not act.in_memory or act.kind == "stop"
        super().act(act)

    def judge_stop(self, in_memory):
        state = self.controller.state
        view_left = min((self.draining[n] - self.now for n in self.group if n in self.draining), default=math.inf)
        if not in_memory:
            return
        assert self.can_hold
        assert not self.is_ending
        assert len([node for node in self.nodes if node not in self.draining]) >= self.least
        has_time = view_left >= stop_s(state.known, state.group)
        assert state.group.is_fresh or not has_time, "two hand-overs without a commit in between"


@given(weather=WEATHER, least=st.integers(1, 3), write_s=st.sampled_from([0.5, 20.0, 90.0]))
def test_any_weather_with_memory(weather, least, write_s):
    """Stops obey the rules, planned changes lose nothing, and at the end all that was not lost is durable."""
    cluster = Judged(4, least=least, most=8, write_s=write_s)
    for event, seconds in weather:
        free = [node for node in cluster.nodes if node not in cluster.draining]
        if event == "add":
            cluster.add()
        elif event in {"drain", "drain soon"} and len(free) > least:
            cluster.drain(free[-1], 120 if event == "drain" else 28)
        elif event == "kill" and len(free) > least:
            cluster.kill(free[0])
        elif event == "fail" and cluster.group and cluster.stopping_since is None:
            cluster.fail(dead=["elsewhere"])
        elif event == "forget" and cluster.group and cluster.stopping_since is None:
            cluster.forget()
        elif event == "keepers":
            cluster.can_hold = not cluster.can_hold
        cluster.run(seconds)
    cluster.run(700, tick_s=2)
    assert cluster.group
    cluster.is_ending = True
    until_s = cluster.now + 700
    while not isinstance(cluster.controller.state, Ending) and cluster.now < until_s:
        cluster.tick()
    assert isinstance(cluster.controller.state, Ending)
    assert cluster.committed == cluster.step


def test_a_run_whose_storage_is_slower_than_its_resizes_commits_all_the_same():
    """A node comes or goes every 30 s, and a commit takes 45 s."""
    cluster = Judged(4, most=8, write_s=45.0).run(30)
    durable = []
    for number in range(20):
        if number % 2:
            cluster.add()
        else:
            cluster.drain([node for node in cluster.nodes if node not in cluster.draining][-1], 60)
        cluster.run(30)
        durable.append(cluster.committed)
    assert all(later > earlier for earlier, later in pairwise(durable[::6]))
    assert sum(kinds(cluster)) >= 3


def test_the_newest_held_step_is_known_in_every_state():
    """It is in a copy, in a commit that is written, or where the group or the one before left it."""
    known, group = known_of(held=101)
    controller = Holding(2).controller
    left = replace(known, held_only_step=99)
    for state, held in (
        (Running(known=known, group=group), 101),
        (Running(known=known, group=replace(group, copied_step=102)), 102),
        (Running(known=left, group=replace(group, held_step=0)), 99),
        (Waiting(known=known, group=replace(group, is_held=True), most=2), 103),
        (Idle(known=known), 0),
        (Idle(known=left), 99),
        (Ending(known=replace(known, maybe_held_step=98)), 98),
    ):
        controller.state = state
        assert controller.held_step == held


def test_a_stop_without_workers_says_what_there_is_to_commit():
    """Nothing, or a step that is in memory alone."""
    known, group = known_of()
    controller = Holding(2).controller
    for state, step in (
        (Idle(known=known), 0),
        (Idle(known=replace(known, held_only_step=99)), 99),
        (Waiting(known=known, group=group, most=2), 0),
        (Waiting(known=known, group=replace(group, is_held=True), most=2), 103),
    ):
        controller.state = state
        assert controller.driver_stop == StopsWithoutGroup(unsaved_step=step)
