"""Limits that end a silent group: expected from the plan's cost until they are measured, at every size."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import Cluster

from planner.elastic.controller import ElasticController
from planner.elastic.group import Group, hang, is_hung, silence_limit_s, start_limit_s
from planner.elastic.history import History
from planner.elastic.pause import NotAResize
from planner.events.failures import WorkersFailed
from planner.plan import BatchSizes, first_collectives_s, make_plan
from planner.plan.growth import ResizeCost

MINUTE_S = 60.0
ROUND_AT_8_S, ROUND_AT_4_S = 50 * MINUTE_S, 100 * MINUTE_S
COST = ResizeCost(grow_s=1.0, shrink_s=1.0)
SECONDS = st.floats(0.01, 1e4)


class SlowRounds(Cluster):
    """A round takes 50 min at 8 workers and 100 min at 4: micro-batches of 2 and of 4 samples, one in a step."""

    def __init__(self, nodes=8):
        super().__init__(nodes, global_batch=16, sample_s=ROUND_AT_8_S / 2)

    def lose(self, count=4):
        for node in self.nodes[-count:]:
            self.kill(node)
        return self

    def until_steps(self, steps):
        while self.step < steps:
            self.run(5, tick_s=5)
        return self


@pytest.mark.parametrize("how", ["lost", "with notice"])
def test_a_slow_round_after_a_shrink_is_no_hang_before_a_typical_step_was_measured(how):
    """Only the first step of the first group is known, and the rounds of the next one take twice as long."""
    cluster = SlowRounds().until_steps(1)
    if how == "lost":
        cluster.lose()
    else:
        for node in cluster.nodes[-4:]:
            cluster.drain(node, 2 * 3600)
    cluster.run(2 * 3600 + 4 * ROUND_AT_4_S, tick_s=5)
    assert cluster.sizes == [8, 4]
    assert cluster.step >= 3


def test_a_slow_round_after_a_shrink_is_no_hang_before_anything_was_measured():
    """The nodes go during the very first step. The hour that its rounds had becomes two at half the workers."""
    cluster = SlowRounds().run(40 * MINUTE_S, tick_s=5).lose()
    cluster.run(3.5 * ROUND_AT_4_S, tick_s=5)
    assert cluster.sizes == [8, 4]
    assert cluster.step == 3


def test_a_slow_round_is_no_hang_in_a_launch_that_begins_smaller_than_the_last_one():
    """The ledger has the steps of the last launch, at 8 workers. This one has 4 from the start."""
    cluster = SlowRounds(4)
    rules = cluster.controller.state.known.rules
    cluster.controller = ElasticController(
        rules, cost=COST, clock=lambda: cluster.now, earlier_sample_s=ROUND_AT_8_S / 2
    )
    cluster.run(2.5 * ROUND_AT_4_S, tick_s=5)
    assert cluster.sizes == [4]
    assert cluster.step == 2


def test_a_silent_group_is_still_ended_before_a_typical_step_was_measured():
    """After twenty of the rounds that are expected at its size."""
    cluster = SlowRounds().until_steps(1).lose().until_steps(2)
    cluster.hung = True
    cluster.run(20 * ROUND_AT_4_S - 60, tick_s=5)
    assert cluster.sizes == [8, 4]
    cluster.run(120, tick_s=5)
    assert cluster.sizes == [8, 4, 4]
    (failed,) = cluster.told(WorkersFailed)
    assert failed.reason.silence_s == pytest.approx(33 * 3600, rel=0.02)


def test_a_silent_group_is_still_ended_before_anything_was_measured():
    """After the hour of the first group, and after two with half its workers."""
    cluster = SlowRounds()
    cluster.tick()
    cluster.hung = True
    cluster.run(3590, tick_s=5)
    assert cluster.sizes == [8]
    cluster.run(20, tick_s=5)
    assert cluster.sizes == [8, 8]
    cluster.lose().run(10)
    cluster.hung = True
    cluster.run(7180, tick_s=5)
    assert cluster.sizes == [8, 8, 4]
    cluster.run(30, tick_s=5)
    assert cluster.sizes == [8, 8, 4, 4]


@st.composite
def histories(draw):
    """What a launch may know: of typical steps, of first steps, of earlier launches, of a commit, or of nothing."""
    sizes = BatchSizes(global_batch=draw(st.integers(16, 256)), max_micro=draw(st.integers(1, 64)))
    history = History(sizes=sizes, default_cost=COST, earlier_sample_s=draw(st.just(0.0) | SECONDS)).after_placement(
        draw(st.integers(1, 16))
    )
    for size, seconds in draw(st.dictionaries(st.integers(1, 16), SECONDS, max_size=2)).items():
        history = history.after_first_step(size, seconds, 2 * seconds)
    for size, seconds in draw(st.dictionaries(st.integers(1, 16), SECONDS, max_size=2)).items():
        history = history.after_step(size, seconds)
    return history.after_commit(4, draw(st.just(0.0) | SECONDS))


def group_of(size, num_steps):
    group = Group.started(tuple(f"n{rank}" for rank in range(size)), NotAResize(), 0.0)
    return replace(group, num_steps=num_steps)


@given(histories(), st.integers(1, 16), st.integers(0, 2))
def test_no_limit_is_below_twenty_rounds_expected_at_the_size(history, size, num_steps):
    """At every size and step of a group. The workers' first collectives wait longer."""
    group, round_s = group_of(size, num_steps), history.round_s(size)
    assert round_s > 0
    limit_s = silence_limit_s(group, history)
    assert limit_s >= 20 * round_s
    assert limit_s >= (600 if history.steps and history.commit.seconds else 3600)
    found = replace(group, deaf_since={0: 0.0}, looked_s=limit_s)
    assert not is_hung(found, history, min(20 * round_s, limit_s))
    assert hang(found, history, limit_s)[0].limit_s >= 20 * round_s
    assert is_hung(group, history, limit_s * 1.001)
    assert first_collectives_s(start_limit_s(size, history)) > max(start_limit_s(size, history), limit_s)


@given(
    sizes=st.builds(BatchSizes, global_batch=st.integers(16, 256), max_micro=st.integers(1, 64)),
    known=st.integers(1, 16),
    size=st.integers(1, 16),
    seconds=SECONDS,
    source=st.sampled_from(["first step", "earlier launch", "typical step"]),
)
def test_a_round_is_expected_from_the_plans_cost_whatever_is_known(sizes, known, size, seconds, source):
    """From one step at another size: its seconds times the largest micro-batch here, by the cost of the step there."""
    history, cost = History(sizes=sizes, default_cost=COST), make_plan(sizes, known).step_cost
    if source == "earlier launch":
        history = replace(history, earlier_sample_s=seconds / cost)
    elif source == "first step":
        history = history.after_first_step(known, seconds, 3 * seconds)
    else:
        history = history.after_step(known, seconds)
    assert history.round_s(size) == pytest.approx(seconds * make_plan(sizes, size).max_micro_batch / cost)


@given(
    sizes=st.builds(BatchSizes, global_batch=st.integers(64, 256), max_micro=st.integers(1, 256)),
    measured=st.dictionaries(st.integers(8, 64), SECONDS, min_size=1, max_size=3),
    size=st.integers(1, 7),
)
def test_a_deep_shrink_is_allowed_what_the_cost_says_although_measured_times_do_not_depend_on_it(sizes, measured, size):
    """Where collectives take most of a step, 64 workers and 40 are equally fast. One worker is not."""
    history = History(sizes=sizes, default_cost=COST)
    for known, seconds in measured.items():
        history = history.after_step(known, seconds)
    cost = max(make_plan(sizes, known).step_cost for known in measured)
    times = [seconds for known, seconds in measured.items() if make_plan(sizes, known).step_cost == cost]
    least_s = min(times) * make_plan(sizes, size).max_micro_batch / cost
    assert history.round_s(size) * (1 + 1e-9) >= least_s
    assert silence_limit_s(group_of(size, 2), history) * (1 + 1e-9) >= 20 * least_s


@given(
    st.builds(BatchSizes, global_batch=st.integers(16, 256), max_micro=st.integers(1, 64)),
    st.integers(1, 16),
    st.integers(1, 16),
)
def test_the_first_hour_grows_with_the_micro_batch_and_never_shrinks(sizes, began, size):
    """Nothing is known: a group with larger micro-batches than the launch began with gets more time for a round."""
    history = History(sizes=sizes, default_cost=COST)
    assert start_limit_s(size, history) == 3600
    history = history.after_placement(began).after_placement(size)
    ratio = make_plan(sizes, size).max_micro_batch / make_plan(sizes, began).max_micro_batch
    assert start_limit_s(size, history) == pytest.approx(3600 * max(ratio, 1.0))


BY_LENGTH = BatchSizes(global_batch=32, max_micro=8, max_tokens=1000)


def test_times_of_unequal_steps_are_compared_by_what_their_samples_cost():
    """Two workers met the long rows and four the short ones. Twice as many workers are twice as fast all the same."""
    history = History(sizes=BY_LENGTH, default_cost=COST)
    for _ in range(3):
        history = history.after_step(2, 6.0, 6000).after_step(4, 1.0, 2000)
    assert history.speeds.measured == {2: 4.0, 4: 2.0}
    assert history.step_s(8) == pytest.approx(1.0, rel=0.1)


def test_a_round_by_length_may_have_all_tokens_that_it_may_hold():
    """Of a step of 4,000 tokens, 2 workers have 2,000 each in 2 s. A round has at most 1,000: 1 s."""
    history = History(sizes=BY_LENGTH, default_cost=COST).after_step(2, 2.0, 4000)
    assert history.round_s(2) == pytest.approx(1.0)
    # Of short rows, a whole step on one worker.
    short = History(sizes=BY_LENGTH, default_cost=COST).after_step(2, 0.2, 400)
    assert short.round_s(2) == pytest.approx(0.4)


def test_measured_steps_of_this_launch_count_before_all_else():
    """First steps compile kernels, and an earlier launch may have had other machines."""
    history = History(
        sizes=BatchSizes(global_batch=16, max_micro=8), default_cost=COST, earlier_sample_s=1000.0
    ).after_first_step(8, 600.0, 700.0)
    assert history.round_s(8) == 600.0
    assert history.after_step(8, 2.0).round_s(8) == 2.0
