"""Policies on traces: no second is lost, equal seeds give equal results, and nobody beats the one that knows all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import BatchSizes, WorkerRange
from planner.simulation.lives import Notice, lives_of
from planner.simulation.outcome import POLICIES
from planner.simulation.play import play
from planner.simulation.regimes import make_trace, parse_regime
from planner.simulation.trace import NodesAt, Trace
from planner.simulation.world import Costs, Speed, by_cost

SIZES = BatchSizes(global_batch=64, max_micro=4)
HOUR_S = 3600.0


def capacity(*rows):
    return Trace(rows=tuple(NodesAt(time_s=time_s, nodes=nodes) for time_s, nodes in rows))


def played(policy, trace, *, step_s=5.0, notice=None, seed=1, node_workers=1, least=1, **costs):
    lives = lives_of(trace, notice or Notice(), seed)
    speed = Speed(
        sizes=SIZES,
        workers=WorkerRange(least=least, most=64),
        node_workers=node_workers,
        seconds=by_cost(SIZES, lives.peak * node_workers, step_s),
        peak=lives.peak,
    )
    return play(policy, lives, speed, Costs(**costs))


@st.composite
def traces(draw):
    """Up to an hour of up to 12 nodes."""
    gaps = draw(st.lists(st.integers(1, 900), min_size=1, max_size=12))
    rows, now_s = [], 0
    for gap in gaps:
        rows.append((float(now_s), draw(st.integers(0, 12))))
        now_s += gap
    rows[0] = (0.0, max(rows[0][1], 1))
    return capacity(*rows, (float(now_s), 0))


@settings(max_examples=40)
@given(
    traces(),
    st.sampled_from(POLICIES),
    st.sampled_from([0.1, 5.0, 170.0]),
    st.sampled_from([0.0, 15.0]),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_second_is_spent_on_one_thing(trace, policy, step_s, save_s, seed, has_notice):
    """Useful, paused, redone, idle and commits add up to the trace, and none is negative."""
    notice = Notice(seconds=120, share=0.5) if has_notice else None
    found = played(policy, trace, step_s=step_s, save_s=save_s, seed=seed, notice=notice)
    times = (found.useful_s, found.paused_s, found.redone_s, found.idle_s, found.commit_s)
    assert min(times) >= -1e-6
    assert found.total_s == pytest.approx(trace.end_s)
    assert 0 <= found.useful_over_ideal <= 1 + 1e-9


@settings(max_examples=25)
@given(traces(), st.sampled_from(["ours", "stock", "divisors"]), st.sampled_from([0.1, 5.0, 170.0]), st.booleans())
def test_nobody_beats_the_one_that_knows_everything(trace, policy, step_s, has_notice):
    """At the same costs."""
    notice = Notice(seconds=120, share=1.0) if has_notice else None
    best = played("optimum", trace, step_s=step_s, notice=notice)
    assert played(policy, trace, step_s=step_s, notice=notice).steps <= best.steps + 1e-6


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_results(policy):
    """The timeline included. Another seed draws other nodes."""
    trace = make_trace(parse_regime("nodes=8 lifetime=1h group=0.2 length=5h"), seed=3)
    notice = Notice(seconds=60, share=0.5)
    assert played(policy, trace, notice=notice) == played(policy, trace, notice=notice)


@pytest.mark.parametrize("policy", ["ours", "stock", "fixed", "divisors", "optimum", "fair"])
def test_a_trace_without_changes_costs_one_start(policy):
    """And commits, where a policy cannot know that nothing will be lost."""
    found = played(policy, capacity((0.0, 8), (10 * HOUR_S, 8)))
    assert found.paused_s == 60.0
    assert (found.resizes, found.losses, found.redone_s, found.idle_s) == (1, 0, 0, 0)
    assert found.useful_s == pytest.approx(10 * HOUR_S - 60 - found.commit_s)
    assert found.useful_over_ideal == pytest.approx(found.useful_s / (10 * HOUR_S))


def test_ours_grows_beside_the_group_and_says_why():
    """Newcomers start while the group trains. The reason is the controller's own event."""
    found = played("ours", capacity((0.0, 4), (HOUR_S, 8), (5 * HOUR_S, 8)))
    sizes = [change.workers for change in found.changes if change.what == "starts"]
    assert sizes == [4, 8]
    (warm,) = (change for change in found.changes if change.what == "warms")
    assert [event.name for event in warm.events] == ["resizes"]
    assert found.redone_s == 0
    assert found.paused_s == 120


def test_a_notice_saves_the_work_and_a_loss_without_one_does_not():
    """Of one node of four, after an hour and 100 s."""
    trace = capacity((0.0, 4), (HOUR_S + 100, 3), (2 * HOUR_S, 3))
    told, untold = (played("ours", trace, notice=notice) for notice in (Notice(seconds=120, share=1), None))
    assert (told.losses, told.redone_s) == (0, 0)
    assert untold.losses == 1
    assert untold.redone_s > 0
    assert told.steps > untold.steps


def test_stock_looks_every_minute_and_goes_back_to_the_last_commit():
    """It starts again for every difference, and does the steps since the last commit again."""
    found = played("stock", capacity((0.0, 4), (HOUR_S + 5, 8), (2 * HOUR_S, 8)))
    assert [(change.time_s, change.workers) for change in found.changes] == [(0.0, 4), (HOUR_S + 60, 8)]
    assert found.redone_s > 0


def test_fixed_takes_what_is_there_for_half_of_the_time():
    """And waits for so many."""
    found = played("fixed", capacity((0.0, 2), (HOUR_S, 6), (4 * HOUR_S, 6)))
    assert [change.workers for change in found.changes] == [6]
    assert found.idle_s == HOUR_S


@pytest.mark.parametrize("policy", ["fair", "optimum"])
def test_commits_of_the_bounds_are_those_that_their_time_holds(policy):
    """The fair one pays for commits between its losses, too. No commit has a time of its own there."""
    found = played(policy, capacity((0, 4), (1800, 3), (3600, 5), (7200, 2), (14400, 2)), save_s=15.0)
    assert found.commits == round(found.commit_s / 15.0)
    assert found.commits > found.resizes if policy == "fair" else found.commits < found.resizes


@pytest.mark.parametrize("policy", ["fair", "optimum"])
def test_a_bound_has_no_group_while_there_are_no_nodes(policy):
    """Its changes say so, as those of the other policies do."""
    found = played(policy, capacity((0, 4), (3600, 0), (5400, 4), (9000, 4)))
    changes = [(change.time_s, change.what, change.nodes, change.workers) for change in found.changes]
    assert changes == [(0.0, "starts", 4, 4), (3600.0, "stops", 0, 0), (5400.0, "starts", 4, 4)]


def test_the_optimum_takes_the_nodes_that_stay():
    """It knows that one of two goes, so it begins with the other one."""
    found = played("optimum", capacity((0.0, 2), (100.0, 1), (HOUR_S, 1)))
    assert (found.resizes, found.paused_s, found.commit_s) == (1, 60, 0)


def test_nodes_with_several_workers_are_taken_whole():
    """A node of four workers gives four places."""
    found = played("ours", capacity((0.0, 2), (HOUR_S, 2)), node_workers=4)
    assert [change.workers for change in found.changes if change.what == "starts"] == [8]


def test_nobody_trains_below_the_fewest_workers():
    """Before there is room for four, all wait."""
    trace = capacity((0.0, 3), (HOUR_S, 4), (2 * HOUR_S, 4))
    for policy in POLICIES:
        assert played(policy, trace, least=4).idle_s >= HOUR_S, policy


def test_short_steps_take_no_longer_to_simulate():
    """A day of steps of 10 ms, some million of them."""
    found = played("ours", capacity((0.0, 4), (12 * HOUR_S, 3), (24 * HOUR_S, 3)), step_s=0.01)
    assert found.steps > 1e6


def test_long_steps_with_churn_keep_what_stock_keeps():
    """Steps of 120 s, and a loss every 25 min: less would be kept by growing at each node that comes."""
    rows = [(1500.0 * hour + second, nodes) for hour in range(24) for second, nodes in ((0, 8), (1200, 7))]
    ours, stock = (played(policy, capacity(*rows, (36_000.0, 0)), step_s=120.0) for policy in ("ours", "stock"))
    assert ours.useful_over_ideal >= stock.useful_over_ideal
