"""The controller walked through hours of cluster weather, with a clock of its own and no Ray."""

import math
from itertools import pairwise

import pytest
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from message import Message
from simulated_cluster import TICK_S, Blocking, Cluster

from planner.elastic.mistakes import GaveUp
from planner.events.failures import GivesUp, Held, Hung, MemoryLost, NodeLeftOut, Unplaced, WorkersFailed
from planner.events.outlook import StopsMidStep
from planner.events.sizing import Pays, Resized, Resizes
from planner.events.stopping import (
    AwaitsFirstStep,
    CutsStep,
    FirstStepGivenUp,
    NewcomerFailed,
    NewcomersCalledOff,
    NewcomersLate,
    Notice,
    NoticeTooShort,
    NoticeWithdrawn,
    NotParked,
    ReplacementsStart,
    UsesNotice,
    WaitsForRoom,
)
from planner.plan.growth import ResizeCost

BOOM = Message(text="boom")


def test_it_starts_with_what_is_there():
    """Idle: the largest useful size; with G=48, 13 workers are no faster than 12."""
    cluster = Cluster(13).run(5)
    assert cluster.sizes == [12]


def test_it_waits_for_the_least_number_of_workers():
    """Below workers.min nothing starts, and it says so once."""
    cluster = Cluster(2, least=3).run(20)
    assert cluster.sizes == []
    assert cluster.events == [WaitsForRoom(room=2, least=3)]
    cluster.add()
    assert cluster.run(5).sizes == [3]


def test_a_new_node_is_taken_after_its_processes_are_warm():
    """Growing stops no worker before the newcomers are ready, and loses no step."""
    cluster = Cluster(2).run(30)
    cluster.add()
    cluster.run(30)
    assert cluster.sizes == [2, 3]
    assert cluster.recomputed == 0
    kinds = [act.kind for _, act in cluster.acts]
    assert kinds == ["resize", "warm", "stop", "resize"]
    assert cluster.acts[2][0] - cluster.acts[1][0] > 4
    (resizes,) = cluster.told(Resizes)
    assert isinstance(resizes.reason, Pays)
    assert (resizes.to, resizes.reason.move.size, resizes.reason.move.to) == (3, 2, 3)
    assert (resizes.reason.move.to_step_s, resizes.reason.move.step_s) == pytest.approx((1.6, 2.4))


def test_a_node_that_helps_nobody_is_left_alone():
    """12 -> 13 workers compute 4 samples one after another either way."""
    cluster = Cluster(12).run(20)
    cluster.add()
    assert cluster.run(120).sizes == [12]


def test_the_end_of_a_run_is_not_worth_a_resize():
    """Ten steps before the end a new node is not taken, and the reason says why."""
    cluster = Cluster(2, total_steps=13, grow_s=9.0).run(5)
    cluster.add()
    assert cluster.run(10).sizes == [2]


def test_a_notice_becomes_a_shrink_without_a_lost_step():
    """An operator's notice of an hour is answered at once."""
    cluster = Cluster(4).run(30)
    cluster.drain("n3", 3600)
    cluster.run(10)
    assert cluster.sizes == [4, 3]
    assert cluster.recomputed == 0
    (notice,) = cluster.told(Notice)
    assert notice == Notice(leaving=1, size=4, left_s=pytest.approx(3599, abs=0.5), room=3, obstacle=None)
    assert cluster.run(60).sizes == [4, 3]


class TestAShortNotice:
    """The group uses it, because nodes that go anyway can train until then."""

    def test_most_of_it_is_used(self):
        """It stops when a step, the rest of another, a commit and a half, and some seconds are left."""
        cluster = Cluster(4).run(30)
        cluster.drain("n3", 120)
        cluster.run(100)
        assert (cluster.sizes, cluster.told(Notice)) == ([4], [])
        (used,) = cluster.told(UsesNotice)
        assert (used.leaving, used.size, used.room) == (1, 4, 3)
        assert (used.left_s, used.stops_s) == pytest.approx((120, 7.5), abs=0.8)
        cluster.run(17)
        assert cluster.sizes == [4, 3]
        assert cluster.recomputed == 0

    def test_a_node_that_comes_meanwhile_for_a_larger_group_ends_it(self):
        """With it, more workers could train now."""
        cluster = Cluster(4).run(30)
        cluster.drain("n3", 120)
        cluster.run(20)
        cluster.add(3)
        cluster.run(10)
        assert cluster.sizes == [4, 6]
        assert cluster.recomputed == 0

    def test_newcomers_start_meanwhile_on_a_node_that_comes(self):
        """They are ready when the group stops, so no new process keeps the others waiting."""
        cluster = Cluster(4).run(30)
        cluster.drain("n3", 120)
        cluster.run(20)
        cluster.add()
        cluster.run(20)
        assert cluster.newcomers == "ready"
        assert cluster.told(ReplacementsStart) == [ReplacementsStart(newcomers=1, to=4)]
        cluster.run(77)
        assert (cluster.sizes, cluster.group) == ([4, 4], ("n0", "n1", "n2", "n4"))
        assert cluster.recomputed == 0

    def test_no_newcomer_starts_that_would_come_too_late(self):
        """The node comes when the group nearly stops. It starts with the next group."""
        cluster = Cluster(4).run(1)
        cluster.blocked_until = cluster.now + 20  # so long does a start take
        cluster.run(50).drain("n3", 120)
        cluster.run(100)
        cluster.add()
        cluster.run(20)
        assert cluster.sizes == [4, 4]
        assert "warm" not in [act.kind for _, act in cluster.acts]

    def test_newcomers_of_a_notice_that_is_withdrawn_are_called_off(self):
        """The workers that they were to replace stay."""
        cluster = Cluster(4).run(30)
        cluster.add()
        cluster.drain("n3", 120)
        cluster.run(20)
        cluster.draining.clear()
        cluster.nodes.remove("n4")
        cluster.run(20)
        assert cluster.told(NewcomersCalledOff) == [NewcomersCalledOff(reason=NoticeWithdrawn())]
        assert (cluster.newcomers, cluster.sizes) == ("none", [4])

    def test_a_notice_that_is_given_again_is_used_again(self):
        """It is told, and has newcomers of its own."""
        cluster = Cluster(4, most=4).run(30)
        cluster.add()
        for _ in range(2):
            cluster.draining.clear()
            cluster.run(10)
            cluster.drain("n3", 120)
            cluster.run(10)
        assert [act.kind for _, act in cluster.acts] == ["resize", "warm", "abandon_newcomers", "warm"]
        assert len(cluster.told(UsesNotice)) == 2

    def test_the_next_groups_notice_is_used_as_that_of_the_last_one(self):
        """At the same room: its newcomers are others."""
        cluster = Cluster(4, most=4).run(30)
        for number in (3, 2):
            cluster.add()
            cluster.drain(f"n{number}", 120)
            cluster.run(140)
        assert [act.kind for _, act in cluster.acts] == ["resize", *["warm", "stop", "resize"] * 2]
        assert cluster.told(ReplacementsStart) == [ReplacementsStart(newcomers=1, to=4)] * 2

    def test_a_second_notice_that_soon_follows_has_its_newcomer(self):
        """Spot capacity is taken back in batches."""
        cluster = Cluster(4, most=4).run(30)
        cluster.add(2)
        cluster.drain("n3", 120)
        cluster.run(0.5)
        cluster.drain("n2", 120)
        cluster.run(20)
        assert cluster.told(ReplacementsStart) == [ReplacementsStart(newcomers=2, to=4)]

    def test_how_long_newcomers_took_does_not_count_the_notice(self):
        """They were to make the group larger, and were ready long before the notice was withdrawn."""
        cluster = Cluster(4, most=5).run(60)
        cluster.add()
        while cluster.newcomers != "warming":
            cluster.tick()
        cluster.drain("n3", 120)
        cluster.run(60)
        cluster.draining.clear()
        cluster.run(10)
        assert cluster.sizes == [4, 5]
        assert cluster.controller.state.known.history.lead_times == (4.25,)

    def test_a_newcomer_that_fails_is_not_started_again(self):
        """The group trains on through the notice."""
        cluster = Cluster(4).run(30)
        cluster.add()
        cluster.drain("n3", 120)
        cluster.run(2)
        cluster.newcomers = "failed"
        cluster.run(20)
        assert [act.kind for _, act in cluster.acts if act.kind != "resize"] == ["warm", "abandon_newcomers"]
        cluster.run(97)
        assert cluster.sizes == [4, 4]
        assert cluster.recomputed == 0

    @pytest.mark.parametrize("lacks", ["step", "commit"])
    def test_it_is_not_used_before_a_stop_was_measured(self, lacks):
        """How long it takes is not known. A group's first step is not typical."""
        cluster = Cluster(4, sample_s=1.0)
        cluster.commit_s = 0.0 if lacks == "commit" else 0.5
        cluster.run(15 if lacks == "step" else 60)
        cluster.drain("n3", 120)
        cluster.run(20)
        assert cluster.sizes == [4, 3]

    def test_further_notices_are_part_of_it(self):
        """One resize, in time for the first node."""
        cluster = Cluster(6).run(30)
        for node in ("n1", "n2", "n5"):
            cluster.drain(node, 120)
            cluster.run(20)
        cluster.run(70)
        assert cluster.sizes == [6, 3]
        assert cluster.recomputed == 0


class TestACutStep:
    """Steps of a minute: to finish one can take longer than to do it all again."""

    def test_newcomers_that_are_much_faster_do_not_wait_for_the_step(self):
        cluster = Cluster(1, sample_s=1.5, total_steps=1000).run(300)
        cluster.add(11)
        cluster.run(40)
        (cut,) = cluster.told(CutsStep)
        assert (cut.to, cut.left_s) == (12, None)
        assert cut.elapsed_s + cut.rest_s == pytest.approx(cluster.controller.history.step_s(1))
        assert cut.to_step_s < cut.rest_s
        assert [act.cut for _, act in cluster.acts if act.kind == "stop"] == [True]

    def test_while_it_is_given_up_nobody_is_told_that_it_is_finished(self):
        cluster = Cluster(1, sample_s=1.5, total_steps=1000).run(300)
        cluster.add(11)
        while not cluster.told(CutsStep):
            cluster.tick()
        _, stop = cluster.acts[-1]
        assert cluster.controller.stop == StopsMidStep(in_memory=stop.in_memory)

    def test_a_step_that_is_soon_done_is_finished(self):
        """With one worker more, all of it takes longer than its rest."""
        cluster = Cluster(3, sample_s=1.5, total_steps=1000).run(300)
        cluster.add(1)
        cluster.run(60)
        assert [act.cut for _, act in cluster.acts if act.kind == "stop"] == [False]

    def test_a_notice_that_leaves_no_time_for_the_rest(self):
        """What was done before the step is committed, and only that step is done again."""
        cluster = Cluster(2, sample_s=1.5, total_steps=1000, most=2).run(300)
        in_step_s = cluster.progress * cluster.step_s
        cluster.run(max(5 - in_step_s, 0) if in_step_s < 5 else cluster.step_s - in_step_s + 5)
        cluster.drain("n1", 15)
        cluster.run(2)
        (cut,) = cluster.told(CutsStep)
        assert cut.left_s == pytest.approx(15, abs=3)
        assert cut.rest_s > 15
        assert not cluster.told(NoticeTooShort)  # it is long enough for what is done

    def test_a_step_of_one_round_cannot_be_cut(self):
        cluster = Cluster(2, global_batch=8, sample_s=9.0, total_steps=1000, most=4).run(300)
        cluster.add(2)
        cluster.run(80)
        assert [act.cut for _, act in cluster.acts if act.kind == "stop"] == [False]
        assert not cluster.told(CutsStep)


def test_staggered_notices_are_one_resize():
    """Three nodes get theirs within a second or so of each other."""
    cluster = Cluster(6).run(30)
    for node in ("n1", "n2", "n5"):
        cluster.drain(node, 600)
        cluster.run(0.75)
    cluster.run(20)
    assert cluster.sizes == [6, 3]
    assert cluster.recomputed == 0


def test_a_replacement_takes_the_place_of_a_node_that_goes():
    """The same size on other nodes."""
    cluster = Cluster(4, most=4).run(30)
    cluster.add()
    cluster.drain("n0", 600)
    cluster.run(20)
    assert cluster.sizes == [4, 4]
    assert "n0" not in cluster.group
    assert cluster.recomputed == 0


def test_a_notice_below_the_least_size_is_used_up_then_all_park_and_wait():
    """To stop at once would throw the notice away. All is committed in time; when a node comes, it goes on."""
    cluster = Cluster(2, least=2).run(30)
    cluster.drain("n1", 3600)
    before = cluster.step
    cluster.run(3500)
    assert cluster.step > before + 1000
    cluster.run(98)
    assert cluster.sizes == [2]
    assert cluster.committed == cluster.step > 0
    cluster.add()
    cluster.run(5)
    assert cluster.sizes == [2, 2]
    assert cluster.recomputed == 0


def test_too_short_a_notice_is_said_beforehand_and_what_was_lost_afterwards():
    """A commit of 20 s and a notice of 5 s."""
    cluster = Cluster(4)
    cluster.commit_s = 20.0
    cluster.run(30)
    cluster.drain("n3", 5)
    cluster.run(30)
    assert [told.tries_s for told in cluster.told(NoticeTooShort)] == [None]
    assert cluster.recomputed > 0
    assert cluster.sizes == [4, 3]


class TestANoticeThatNamesThePresent:
    """AWS hibernates so: zero seconds. The machine often lives on for a few."""

    def drained(self, *, lives_on_s, commit_s=0.5):
        cluster = Blocking(4, commit_s=commit_s, every_steps=60).run(80 + 3 * commit_s)
        assert cluster.step > cluster.committed > 0
        cluster.lives_on_s = lives_on_s
        cluster.drain("n3", 0)
        self.began = cluster.now
        return cluster.run(30)

    def test_a_quick_commit_is_made_all_the_same(self):
        """A step of 1.2 s and a commit of 0.5 s."""
        cluster = self.drained(lives_on_s=6.0)
        assert (cluster.sizes, cluster.recomputed) == ([4, 3], 0)
        assert [told.tries_s for told in cluster.told(NoticeTooShort)] == [
            pytest.approx(5.1, abs=1.3)
        ]  # twice what a stop may take

    def test_a_machine_that_is_gone_at_once_costs_no_more_than_its_loss(self):
        """Its workers fail, and the rest goes on from the last commit."""
        cluster = self.drained(lives_on_s=1.0)
        assert cluster.sizes == [4, 3]
        assert cluster.recomputed > 0
        assert next(at for at, act in cluster.acts if act.kind == "resize" and at > self.began) - self.began < 2

    def test_a_worker_that_does_not_answer_is_not_waited_for(self):
        """The machine sleeps already, and no connection breaks."""
        cluster = Blocking(4, every_steps=60).run(80)
        cluster.lives_on_s, cluster.hung = math.inf, True
        cluster.drain("n3", 0)
        began = cluster.now
        cluster.run(30)
        assert cluster.sizes == [4, 3]
        assert 3.5 < next(at for at, act in cluster.acts if act.kind == "resize" and at > began) - began < 8

    def test_a_long_commit_is_not_tried(self):
        """It takes 20 s: at once from the last one, rather than later."""
        cluster = self.drained(lives_on_s=math.inf, commit_s=20.0)
        assert cluster.sizes == [4, 3]
        assert cluster.recomputed > 0
        assert [told.tries_s for told in cluster.told(NoticeTooShort)] == [None]
        assert next(at for at, act in cluster.acts if act.kind == "resize" and at > self.began) - self.began < 1


def test_lost_nodes_are_never_charged():
    """A hundred losses in an hour are what spot does."""
    cluster = Cluster(4).run(20)
    for _ in range(100):
        cluster.kill(cluster.nodes[-1])
        cluster.add()
        cluster.run(30)
    assert cluster.step >= cluster.committed


def test_a_crash_loop_stops():
    """Without a step in between, the sixth failure in a row is the last."""
    cluster = Cluster(2).run(1)
    for _ in range(5):
        cluster.fail(reason=BOOM)
        cluster.run(0.5)
    with pytest.raises(GaveUp) as caught:
        cluster.fail(reason=BOOM)
    assert caught.value.event == GivesUp(reason=BOOM, why="no_progress", failures=6)


def test_a_crash_loop_that_repeats_its_steps_stops():
    """Each group does the steps since the last commit again, up to the one that fails: no step is new."""
    cluster = Cluster(2).run(30)
    failing_step = cluster.step
    for _ in range(5):
        cluster.fail(reason=BOOM)
        while cluster.step < failing_step:
            cluster.tick()
    with pytest.raises(GaveUp) as caught:
        cluster.fail(reason=BOOM)
    assert caught.value.event == GivesUp(reason=BOOM, why="no_progress", failures=6)


def test_failures_now_and_then_do_not_stop_it():
    """One an hour, for two days."""
    cluster = Cluster(2).run(60)
    for _ in range(48):
        cluster.fail()
        cluster.now += 3500
        cluster.run(20)
        cluster.committed = cluster.step
    assert cluster.group


def test_failures_too_often_stop_it_in_spite_of_progress():
    """Twenty within an hour."""
    cluster = Cluster(2).run(60)
    for _ in range(19):
        cluster.committed = cluster.step
        cluster.fail(reason=BOOM)
        cluster.run(60)
    with pytest.raises(GaveUp) as caught:
        cluster.fail(reason=BOOM)
    assert caught.value.event == GivesUp(reason=BOOM, why="too_often", failures=20)


def test_copies_that_are_gone_are_no_failure_of_a_worker():
    """However often: clouds take nodes away before their deadline. It is said each time."""
    cluster = Cluster(2).run(60)
    for number in range(30):
        cluster.lose_steps()
        cluster.group, cluster.stopping_since, cluster.newcomers = (), None, "none"
        cluster.controller.lost_memory(Message(text=f"step {number} is gone"))
        cluster.run(30)
    assert cluster.group
    assert [lost.reason.text for lost in cluster.told(MemoryLost)] == [f"step {number} is gone" for number in range(30)]


def test_a_bad_node_is_left_out_and_named():
    """The third worker that dies on it; the others go on without."""
    cluster = Cluster(4).run(30)
    for _ in range(3):
        assert "n2" in cluster.group
        cluster.committed = cluster.step
        cluster.fail(blamed={"n2"})
        cluster.run(30)
    assert cluster.group == ("n0", "n1", "n3")
    assert cluster.told(NodeLeftOut) == [NodeLeftOut(node="n2", deaths=3)]


def test_a_bad_node_is_better_than_too_few():
    """Below workers.min there is no choice."""
    cluster = Cluster(2, least=2).run(30)
    for _ in range(4):
        cluster.committed = cluster.step
        cluster.fail(blamed={"n1"})
        cluster.run(30)
    assert len(cluster.group) == 2


def hangs(cluster):
    return [failed.reason for failed in cluster.told(WorkersFailed)]


def test_a_hang_ends_the_group():
    """No progress for ten minutes, though every process answers."""
    cluster = Cluster(4).run(60)
    cluster.hung = True
    cluster.run(590)
    assert cluster.sizes == [4]
    cluster.run(20)
    assert cluster.sizes == [4, 4]
    assert hangs(cluster) == [Hung(silence_s=pytest.approx(600, abs=1), limit_s=600, deaf=0)]


def test_a_worker_that_does_not_answer_either_ends_the_group_sooner():
    """Its process was stopped: a minute, where rounds take less than three seconds."""
    cluster = Cluster(4).run(60)
    cluster.hung, cluster.deaf = True, frozenset({2})
    cluster.run(55)
    assert cluster.sizes == [4]
    cluster.run(20)
    assert cluster.sizes[:2] == [4, 4]
    assert hangs(cluster) == [Hung(silence_s=pytest.approx(60, abs=1), limit_s=60, deaf=1)]


def test_a_worker_that_does_not_answer_while_the_others_make_progress_is_left_alone():
    """A busy process answers late."""
    cluster = Cluster(4)
    cluster.deaf = frozenset({2})
    assert cluster.run(1000).sizes == [4]


def test_a_hang_after_a_long_notice_does_not_wait_for_its_end():
    """An hour is left, and the workers that are to commit make no progress any more."""
    cluster = Cluster(4).run(60)
    cluster.drain(cluster.nodes[0], 3600)
    while cluster.stopping_since is None:
        cluster.tick()
    cluster.hung = True
    cluster.run(590)
    assert cluster.sizes == [4]
    cluster.run(20)
    assert cluster.sizes == [4, 3]


def test_a_late_answer_is_no_hang():
    """A poll is given a quarter of a second. A group that commits in silence for minutes may miss a few."""
    cluster = Cluster(4).run(60)
    cluster.hung = True
    for _ in range(7):
        cluster.deaf = frozenset()
        cluster.run(58)
        cluster.deaf = frozenset({2})
        cluster.run(2)
    cluster.hung, cluster.deaf = False, frozenset()
    assert cluster.run(600).sizes == [4]


def test_a_hang_is_not_blamed_on_a_late_answer():
    """Three such, and a node that is well would be left out."""
    cluster = Cluster(4).run(60)
    cluster.hung = True
    cluster.run(598)
    cluster.deaf = frozenset({2})
    cluster.run(10)
    assert cluster.sizes == [4, 4]
    assert hangs(cluster) == [Hung(silence_s=pytest.approx(600, abs=1), limit_s=600, deaf=0)]


def test_a_deep_shrink_is_no_hang():
    """16 nodes become one: steps of a minute take 16 there, and go on for two hours."""
    cluster = Cluster(16, global_batch=128, sample_s=7.5).run(400)
    before = cluster.step
    for node in cluster.nodes[1:]:
        cluster.drain(node, 120)
    cluster.run(7200, tick_s=2)
    assert cluster.sizes == [16, 1]
    assert cluster.step >= before + 7
    cluster.add(15)
    cluster.run(3000, tick_s=2)
    assert cluster.sizes == [16, 1, 16]
    assert cluster.recomputed == 0


def test_a_step_may_take_hours_from_the_start():
    """Its rounds are progress."""
    cluster = Cluster(1, global_batch=128, sample_s=60.0, most=1).run(3 * 7700, tick_s=5)
    assert cluster.sizes == [1]
    assert cluster.step == 3


def test_a_hang_is_measured_by_the_rounds_of_the_size_at_hand():
    """Rounds of a minute: ten minutes are too few, twenty are enough."""
    cluster = Cluster(16, global_batch=128, sample_s=7.5).run(400)
    cluster.hung = True
    cluster.run(1100)
    assert cluster.sizes == [16]
    cluster.run(200)
    assert cluster.sizes == [16, 16]


def test_a_pause_of_everything_is_no_hang():
    """The machine was suspended, and the controller with it: silence is what it has looked for."""
    cluster = Cluster(4).run(60)
    cluster.now += 3600
    cluster.hung = True
    cluster.run(580)
    assert cluster.sizes == [4]
    cluster.run(60)
    assert cluster.sizes == [4, 4]


def test_a_controller_that_is_always_slow_finds_a_hang():
    """Each of its turns takes 40 s, of which it counts 15."""
    cluster = Cluster(4).run(60)
    cluster.hung = True
    for _ in range(60):
        cluster.now += 40
        cluster.tick()
    assert cluster.sizes[:2] == [4, 4]


def test_progress_before_the_first_step_is_a_sign_of_life():
    """A group that computes reference log-probabilities for hours is left alone; one that falls silent is not."""
    cluster = Cluster(4)
    cluster.tick()
    cluster.hung = True
    for _ in range(8):
        cluster.run(3000, tick_s=5)
        cluster.units += 1
    assert cluster.sizes == [4]
    cluster.run(3700, tick_s=5)
    assert cluster.sizes == [4, 4]


def test_flapping_is_watched_before_it_is_followed():
    """W and W+1 in turn every 10 s for five minutes, with new processes at 8 s a resize: two resizes, not 29."""
    cluster = Cluster(4, global_batch=48, grow_s=8.0, shrink_s=8.0).run(30)
    done = cluster.step
    for _ in range(15):
        cluster.add()
        cluster.run(10)
        cluster.drain(cluster.nodes[-1], 5)
        cluster.run(10)
    resizes = len(cluster.sizes) - 1
    assert resizes <= 4
    assert cluster.recomputed == 0
    # Never to resize would have done 300 s / 1.2 s = 250 steps.
    assert cluster.step - done >= 250 * 0.9


@examples(25)
@given(
    weather=st.lists(
        st.tuples(st.sampled_from(["add", "drain", "kill", "nothing"]), st.floats(1, 60)), min_size=1, max_size=25
    ),
    least=st.integers(1, 3),
)
def test_any_weather(weather, least):
    """It always comes back to the largest useful size; planned changes never cost a step."""
    cluster = Cluster(4, least=least, most=8)
    unplanned = 0
    for event, seconds in weather:
        free = [node for node in cluster.nodes if node not in cluster.draining]
        if event == "add":
            cluster.add()
        elif event == "drain" and len(free) > least:
            cluster.drain(free[-1], 30)
        elif event == "kill" and len(free) > least:
            unplanned += free[0] in cluster.group
            cluster.kill(free[0])
        before = cluster.recomputed
        cluster.run(seconds)
        assert cluster.recomputed == before
    cluster.run(400)
    room = len([node for node in cluster.nodes if node not in cluster.draining])
    best = math.ceil(48 / min(room, 8))
    assert math.ceil(48 / len(cluster.group)) <= best * 1.03


class TestNothingIsLostByImpatience:
    def test_the_first_commit_of_all_takes_longer_than_a_minute(self):
        """The duration of a commit is not known yet."""
        cluster = Blocking(4, commit_s=90.0).run(600)
        cluster.add()
        cluster.run(400)
        assert (cluster.sizes, cluster.recomputed) == ([4, 5], 0)

    def test_a_first_upload_of_half_an_hour_is_no_hang(self):
        """Nothing was measured; what came before it took a second."""
        cluster = Blocking(4, commit_s=1800.0, every_steps=100).run(2000)
        assert cluster.committed == 100 < cluster.step
        assert (cluster.sizes, cluster.recomputed) == ([4], 0)

    def test_a_hang_after_a_resize_is_told_by_the_last_groups_commits(self):
        """Not by the hour that a run has at first."""
        cluster = Blocking(4, every_steps=60).run(200)
        cluster.add()
        cluster.run(60)
        cluster.hung = True
        cluster.run(700)
        assert cluster.sizes == [4, 5, 5]

    def test_a_hang_before_a_groups_first_step_is_told_by_the_last_groups_start(self):
        """Its first step came after 2 s, its commit took 40: ten minutes, and not the hour that a run has at first."""
        cluster = Blocking(4, commit_s=40.0, every_steps=60).run(300)
        cluster.kill("n3")
        cluster.run(2)
        cluster.hung = True
        cluster.run(590)
        assert cluster.sizes == [4, 3]
        cluster.run(60)
        assert cluster.sizes == [4, 3, 3]

    def test_what_a_commit_takes_is_not_forgotten_by_a_resize(self):
        """The second growth comes before the new group's first commit."""
        cluster = Blocking(4, commit_s=90.0, every_steps=300).run(2000)
        cluster.add()
        cluster.run(400)
        cluster.add()
        cluster.run(600)
        assert (cluster.sizes, cluster.recomputed) == ([4, 5, 6], 0)

    @pytest.mark.parametrize("notice_s", [0, 400])
    def test_a_change_waits_for_an_evaluation_that_was_begun(self, notice_s):
        """Of five minutes: for a growth as long as it takes, for a notice until the node goes."""
        cluster = Blocking(4, eval_s=300.0, eval_every=400, every_steps=500).run(1200)
        cluster.until_evaluating()
        if notice_s:
            cluster.drain("n3", notice_s)
        else:
            cluster.add()
        cluster.run(500)
        assert (cluster.sizes, cluster.recomputed) == ([4, 3 if notice_s else 5], 0)

    def test_a_notice_too_short_for_a_commit_is_said_in_a_new_group_too(self):
        """A commit of 90 s was seen before the resize."""
        cluster = Blocking(4, commit_s=90.0, every_steps=300).run(2000)
        cluster.add()
        cluster.run(300)
        cluster.drain("n4", 60)
        cluster.run(100)
        assert len(cluster.told(NoticeTooShort)) == 1

    def test_a_notice_that_is_withdrawn_leaves_time_for_the_commit(self):
        """It takes 50 s, and the notice was of 30."""
        cluster = Blocking(4, commit_s=50.0, every_steps=200).run(600)
        cluster.drain("n3", 30)
        cluster.run(10)
        del cluster.draining["n3"]
        cluster.run(200)
        assert cluster.recomputed == 0


class TestPlacesThatCannotBeHad:
    def test_newcomers_that_fail_are_tried_less_and_less_often(self):
        """A broken environment on the new node: not twenty times a minute."""
        cluster = Blocking(2, newcomers="failing").run(30)
        cluster.add()
        cluster.run(3600)
        warms = [at for at, act in cluster.acts if act.kind == "warm"]
        assert 4 <= len(warms) <= 10
        assert all(later - earlier > 25 for earlier, later in pairwise(warms))
        held = [told.reason for told in cluster.told(NewcomersCalledOff)]
        assert {(told.reason, told.most) for told in held} == {(NewcomerFailed(), 2)}
        assert [told.hold_s for told in held][:2] == [30, 60]

    def test_newcomers_that_never_get_their_place_are_given_up(self):
        """Something else runs on their node. When it has gone, they are taken."""
        cluster = Blocking(2, newcomers="stuck").run(30)
        cluster.add()
        cluster.run(600)
        assert cluster.sizes == [2]
        assert isinstance(cluster.told(NewcomersCalledOff)[0].reason.reason, NewcomersLate)
        cluster.newcomers_are = ""
        cluster.run(1800)
        assert cluster.sizes == [2, 3]

    def test_newcomers_that_take_ten_minutes_are_awaited_at_last(self):
        """They tokenize a data set before they are ready, each time anew: twice as long is given each time."""
        cluster = Blocking(2, newcomers="slow").run(30)
        cluster.add()
        cluster.run(6000, tick_s=2)
        assert (cluster.sizes, cluster.recomputed) == ([2, 3], 0)

    def test_a_group_starts_with_the_places_that_it_gets(self):
        """Three were counted and two could be had: two train, and three are tried again later."""
        cluster = Cluster(3)
        cluster.controller.unplaced(2, 3)
        cluster.run(10)
        assert cluster.sizes == [2]
        assert cluster.told(Held) == [Held(reason=Unplaced(placed=2, asked=3), most=2, hold_s=30)]
        cluster.run(120)
        assert cluster.sizes == [2, 3]


def test_a_node_that_comes_during_a_change_waits_for_the_next_one():
    """A second node comes while the first one's processes start: the pause is not theirs to begin in."""
    cluster = Cluster(2).run(30)
    cluster.add()
    cluster.run(2)
    cluster.add()
    cluster.run(60)
    assert cluster.sizes == [2, 3, 4]
    assert [act.world_size for _, act in cluster.acts if act.kind == "warm"] == [1, 1]


def test_time_spent_waiting_for_nodes_is_no_price_of_a_resize():
    """Two hours below workers.min, then growth: what a resize costs is seconds."""
    cluster = Cluster(2, least=2, total_steps=40_000).run(60)
    cluster.drain("n1", 30)
    cluster.run(7200)
    cluster.add()
    cluster.run(60)
    assert cluster.controller.history.cost.shrink_s < 30
    cluster.kill("n0")
    cluster.run(7200)
    cluster.add(2)
    cluster.run(120)
    assert cluster.controller.history.cost.grow_s < 30


def test_a_stop_that_nobody_answers_ends_even_where_too_few_nodes_are_left():
    """A worker hangs, and the room is below workers.min: told as what it is, not as a wait for nodes."""
    cluster = Cluster(2, least=2).run(60)
    cluster.hung = True
    cluster.drain("n1", 3)
    cluster.run(1)
    cluster.draining["n1"] = math.inf
    found = []
    cluster.act = found.append
    cluster.run(3000)
    first = next(act for act in found if act.kind == "resize")
    assert not first.planned
    assert any(isinstance(event, NotParked) for event in cluster.controller.events)


def test_the_driver_need_not_wait_for_workers_that_are_only_starting():
    """To load a large model takes minutes, and nothing is done yet that could be lost."""
    cluster = Cluster(2).run(1)
    assert cluster.step == 0
    cluster.is_ending = True
    found = []
    cluster.act = found.append
    cluster.tick()
    assert [act.kind for act in found] == ["end"]


@pytest.mark.parametrize("nodes", [2, 1])
def test_the_driver_ends_a_run_when_all_have_committed(nodes):
    """Or at once, where no group runs; and nothing is started any more."""
    cluster = Cluster(nodes, least=2).run(30)
    cluster.is_ending = True
    kinds = []
    cluster.act = lambda act: (kinds.append(act.kind), Cluster.act(cluster, act))
    cluster.run(20)
    assert kinds[-1] == "end"
    assert "resize" not in kinds
    assert cluster.committed == cluster.step


@pytest.mark.parametrize(("grow_s", "size"), [(10.0, 8), (2.0, 4)])
def test_a_node_that_comes_while_newcomers_start_joins_where_a_pause_costs_more(grow_s, size):
    """Newcomers take 4.25 s. To start others beside them takes as long, with all standing still."""
    cluster = Cluster(2, grow_s=grow_s).run(60)
    cluster.add(2)
    while cluster.newcomers != "warming":
        cluster.tick()
    cluster.run(2)
    cluster.add(4)
    while len(cluster.sizes) == 1:
        cluster.tick()
    assert cluster.sizes == [2, size]


class TestBeforeTheFirstStep:
    def test_many_free_nodes_are_not_left_waiting_for_a_long_step(self):
        """A step of one worker takes twenty minutes; 24 nodes come in its first minute."""
        cluster = Cluster(1, global_batch=240, sample_s=5.0, most=24, grow_s=10.0).run(30)
        cluster.add(23)
        cluster.run(90)
        assert cluster.sizes == [1, 24]
        assert len(cluster.told(FirstStepGivenUp)) == 1
        assert cluster.controller.history.cost == ResizeCost(grow_s=10.0, shrink_s=1.0, lead_s=4.25)
        assert cluster.run(60).step >= 1

    def test_a_step_that_is_soon_done_is_not_given_up(self):
        """It ends while the newcomers start."""
        cluster = Cluster(1, global_batch=48, sample_s=0.5, most=24, grow_s=10.0).run(12)
        cluster.add(23)
        cluster.run(60)
        assert cluster.sizes == [1, 24]
        assert cluster.recomputed == 0
        assert not cluster.told(FirstStepGivenUp)

    @pytest.mark.parametrize("goes", ["the newcomers", "all, after notice"])
    def test_a_step_is_not_given_up_for_places_that_are_gone(self, goes):
        """Newcomers that leave again, and a notice: then there is nothing to begin the step again for."""
        cluster = Cluster(1, global_batch=240, sample_s=5.0, most=24, grow_s=10.0).run(30)
        cluster.add(23)
        cluster.run(20)
        assert cluster.newcomers == "ready"
        for node in cluster.nodes[1:] if goes == "the newcomers" else [*cluster.nodes]:
            cluster.drain(node, 600 if goes == "all, after notice" else 0)
        cluster.run(500)
        assert cluster.sizes == [1]
        assert not cluster.told(FirstStepGivenUp)

    def test_a_start_that_outlasts_the_room_is_not_in_vain(self):
        """Newcomers are ready before the group trains, and their nodes go when it does its first step."""
        cluster = Cluster(1, most=24, grow_s=5.0).run(1)
        cluster.blocked_until = cluster.now + 12
        cluster.add(23)
        cluster.run(12)
        assert cluster.newcomers == "ready"
        assert len(cluster.told(AwaitsFirstStep)) == 1
        for node in cluster.nodes[1:]:
            cluster.kill(node)
        cluster.run(8)
        assert [act.kind for _, act in cluster.acts] == ["resize", "warm", "abandon_newcomers"]
        assert cluster.step == 1

    def test_a_larger_group_that_does_it_sooner_does_not_wait_for_it(self):
        """The group has just started, and its step takes 48 s where that of 24 workers takes 2 s."""
        cluster = Cluster(24, most=24, sample_s=1.0, grow_s=1.0).run(60)
        for node in cluster.nodes[1:]:
            cluster.kill(node)
        cluster.run(2)
        assert cluster.group == ("n0",)
        cluster.add(23)
        cluster.run(20)
        assert not cluster.told(AwaitsFirstStep)
        assert [act.kind for _, act in cluster.acts][-3:] == ["warm", "stop", "resize"]
        assert cluster.sizes[-1] == 24

    def test_room_that_changes_all_the_time_is_not_followed(self):
        """A node more every five seconds, and a pause takes ten."""
        cluster = Cluster(1, global_batch=240, sample_s=5.0, most=24, grow_s=10.0).run(30)
        for _ in range(20):
            cluster.add()
            cluster.run(5)
        assert cluster.sizes == [1]
        assert cluster.run(200).sizes == [1, 20]

    def test_a_little_more_is_not_worth_it_without_a_measurement(self):
        """Four workers of three may be no faster at all."""
        cluster = Cluster(3, global_batch=240, sample_s=5.0).run(30)
        cluster.add()
        assert cluster.run(300).sizes == [3]


def test_a_wait_for_places_is_no_part_of_the_price_of_a_loss():
    """All have parked, too few places are left, and the node lives on for half an hour after the moment named."""
    cluster = Cluster(2, least=2).run(30)
    cluster.lives_on_s = 1800.0
    cluster.drain(cluster.nodes[1], 30)
    cluster.run(2000)
    cluster.add()
    cluster.run(30)
    assert cluster.sizes == [2, 2]
    assert cluster.controller.history.cost.shrink_s < 10


class Priced(Cluster):
    """Steps take two minutes, every resize stops training for exactly 15 s, and commits take 5 s of them."""

    def __init__(self, nodes, **options):
        super().__init__(nodes, global_batch=48, sample_s=120 * nodes / 48, grow_s=10.0, shrink_s=10.0, **options)
        self.commit_s = 5.0

    @property
    def is_parked(self):
        """The step in flight is finished first."""
        if self.stopping_since is not None and self.progress > 0 and not self.hung:
            return False
        return super().is_parked and self.now - self.parked_since >= self.in_flight_s + self.commit_s

    def train(self):
        if self.stopping_since is not None and self.progress > 0 and self.now >= self.blocked_until:
            self.compute()
            if self.progress >= 1:
                self.progress, self.step, self.parked_since = 0.0, self.step + 1, self.now
            return
        super().train()


class TestThePriceOfAResize:
    def test_work_is_no_part_of_it(self):
        """Neither the step in flight when the signal came nor the new group's first step."""
        cluster = Priced(2, most=3).run(500)
        cluster.add()
        cluster.run(600)
        assert cluster.sizes == [2, 3]
        assert cluster.controller.history.cost.grow_s == pytest.approx(15, abs=2 * TICK_S)
        costs = pytest.approx(15, abs=2 * TICK_S)
        assert cluster.told(Resized) == [Resized(size=2, to=3, cost_s=costs, steps_again=0)]

    def test_a_commit_in_flight_is_part_of_it(self):
        """The stop waits eight seconds for it before the last commit begins, and nothing trains meanwhile."""
        cluster = Priced(2, most=3)
        cluster.in_flight_s = 8.0
        cluster.run(500)
        cluster.add()
        cluster.run(600)
        assert cluster.sizes == [2, 3]
        assert cluster.controller.history.cost.grow_s == pytest.approx(15 + 8, abs=2 * TICK_S)
        assert cluster.controller.history.commit.seconds == 5.0

    def test_a_loss_without_notice_costs_what_is_done_again(self):
        """Twenty seconds of a step and three whole ones since the commit, ten seconds without workers."""
        cluster = Priced(3).run(25)
        while cluster.step < 3:
            cluster.tick()
        cluster.run(20)
        cluster.kill("n2")
        cluster.run(400)
        assert cluster.sizes == [3, 2]
        assert cluster.controller.history.cost.shrink_s == pytest.approx(20 + 3 * 120 + 10, abs=4 * TICK_S)
        assert [told.steps_again for told in cluster.told(Resized)] == [3]

    def test_a_loss_costs_the_steps_on_record_not_only_those_reported(self):
        """A group records each step, and reports at most one a second."""
        cluster = Priced(3).run(25)
        while cluster.step < 3:
            cluster.tick()
        cluster.kill("n2")
        cluster.num_again += 2
        cluster.run(400)
        assert [told.steps_again for told in cluster.told(Resized)] == [5]
        assert cluster.controller.history.cost.shrink_s == pytest.approx(5 * 120 + 10, abs=6 * TICK_S)

    def test_time_without_nodes_is_no_part_of_a_loss(self):
        """For an hour there is no room at all."""
        cluster = Priced(1).run(25)
        while cluster.step < 2:
            cluster.tick()
        cluster.kill("n0")
        cluster.run(3600)
        cluster.add()
        cluster.run(400)
        assert cluster.sizes == [1, 1]
        assert cluster.controller.history.cost.shrink_s == pytest.approx(2 * 120 + 10, abs=4 * TICK_S)

    def test_fewer_workers_write_more_each(self):
        """What a commit took at sixteen says what it takes at two."""
        history = Cluster(1).controller.history.after_commit(16, 3.0)
        assert [history.commit_s(size) for size in (32, 16, 2)] == [3.0, 3.0, 24.0]
        assert history.after_commit(2, 0.0).commit_s(16) == 3.0
