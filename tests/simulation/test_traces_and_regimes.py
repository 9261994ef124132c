"""Traces from files and from rates, and the nodes that they become."""

import math

import pytest

from planner.errors import UserError
from planner.simulation.lives import Notice, lives_of
from planner.simulation.quantities import parse_duration, parse_notice
from planner.simulation.regimes import make_trace, parse_regime
from planner.simulation.trace import NodeEvent, NodesAt, parse_trace

HEAD = "time_s,available_nodes\n"


def test_a_trace_begins_with_its_first_row():
    """Whatever its clock says."""
    trace = parse_trace(f"{HEAD}1000,2\n1060,3\n1120,3\n", "t.csv", "time_s,event,node\n1000,add,a\n", "e.csv")
    assert trace.rows == tuple(NodesAt(time_s=time_s, nodes=nodes) for time_s, nodes in ((0, 2), (60, 3), (120, 3)))
    assert trace.events == (NodeEvent(time_s=0, event="add", node="a"),)
    assert [row.time_s for row in trace.until(90).rows] == [0, 60, 90]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: found no column time_s"),
        ("time_s,nodes\n0,1\n", "line 1: found no column available_nodes"),
        (f"{HEAD}0,1\n", "found 1 row. A trace"),
        (f"{HEAD}0,1\nx,2\n", "line 3: time_s is 'x'"),
        (f"{HEAD}0,1\nnan,2\n", "line 3: time_s is 'nan'"),
        (f"{HEAD}0,1\n10,2.5\n", "line 3: available_nodes is '2.5'"),
        (f"{HEAD}0,1\n10,-1\n", "line 3: available_nodes is '-1'"),
        (f"{HEAD}0,1\n10\n", "line 3: available_nodes is missing"),
        (f"{HEAD}20,1\n10,2\n", "line 3: time_s is 10, after 20"),
        (f"{HEAD}0,1\n0,2\n", "all rows have one time"),
        (f"{HEAD}0,0\n10,0\n", "found no node at any time"),
    ],
)
def test_a_wrong_trace_is_refused_by_its_line(text, said):
    """With what to write."""
    with pytest.raises(UserError) as refused:
        parse_trace(text, "t.csv")
    assert str(refused.value).startswith("t.csv: ")
    assert said in str(refused.value)


def test_a_wrong_event_is_refused_by_its_line():
    """In the name of its own file."""
    with pytest.raises(UserError, match=r"e\.csv: line 2: event is 'gone'\. Write add, remove or notice"):
        parse_trace(f"{HEAD}0,1\n9,1\n", "t.csv", "time_s,event,node\n0,gone,a\n", "e.csv")


def test_a_notice_of_the_events_counts_once():
    """The first one, until the node goes. One for a node that is not there changes nothing, and none is drawn."""
    events = "time_s,event,node\n0,add,a\n5,notice,a\n7,notice,a\n8,notice,b\n10,remove,a\n20,add,a\n"
    trace = parse_trace(f"{HEAD}0,1\n10,0\n20,1\n30,1\n", "t.csv", events, "e.csv")
    lives = lives_of(trace, Notice(seconds=1.0, share=1.0))
    assert [(life.told_s, life.leaves_s) for life in lives.lives] == [(5, 10), (math.inf, math.inf)]
    assert trace.changes == 3


def test_events_say_which_nodes_live():
    """A node may come again, and removing one that is not there changes nothing."""
    events = "time_s,event,node\n0,add,a\n5,add,a\n10,remove,a\n10,remove,b\n20,add,a\n"
    lives = lives_of(parse_trace(f"{HEAD}0,1\n10,0\n20,1\n30,1\n", "t.csv", events, "e.csv"))
    assert [(life.arrives_s, life.leaves_s) for life in lives.lives] == [(0, 10), (20, math.inf)]
    assert lives.counts == ((0, 1), (10, 0), (20, 1))


def test_victims_and_notices_are_drawn_by_the_seed():
    """Counts alone decide when, the seed decides who."""
    trace = parse_trace(f"{HEAD}0,10\n1000,5\n2000,9\n3000,1\n4000,1\n", "t.csv")
    found = [lives_of(trace, Notice(seconds=30, share=0.5), seed) for seed in range(20)]
    assert all(lives.counts == ((0, 10), (1000, 5), (2000, 9), (3000, 1)) for lives in found)
    assert len({lives.lives for lives in found}) > 10
    lost = [life for lives in found for life in lives.lives if life.leaves_s < math.inf]
    assert 0.35 < sum(life.has_notice for life in lost) / len(lost) < 0.65
    assert {life.leaves_s - life.told_s for life in lost if life.has_notice} == {30}


def test_a_regime_has_its_rates():
    """Of ten days: lives of two hours on average, and as many losses as that makes."""
    trace = make_trace(parse_regime("nodes=20 lifetime=2h arrivals=1m length=10d"), seed=1)
    lives = lives_of(trace)
    lost = [life for life in lives.lives if life.leaves_s < math.inf]
    assert sum(life.leaves_s - life.arrives_s for life in lost) / len(lost) == pytest.approx(7200, rel=0.1)
    assert lives.peak == 20
    assert make_trace(parse_regime("nodes=20"), seed=1) != make_trace(parse_regime("nodes=20"), seed=2)


def test_groups_ramps_and_flaps_do_what_they_say():
    """Losses together, fewer nodes at the low, and two nodes that come and go."""
    together = lives_of(make_trace(parse_regime("nodes=10 group=1 lifetime=2h arrivals=1s length=1d"))).counts
    assert 0 in {nodes for _, nodes in together}
    ramp = lives_of(make_trace(parse_regime("nodes=10 ramp=4h:0.2 lifetime=1000d arrivals=1s length=8h"))).counts
    assert min(nodes for time_s, nodes in ramp if time_s < 3 * 3600) <= 3
    flap = lives_of(make_trace(parse_regime("nodes=4 flap=10m:2 lifetime=1000d length=1h"))).counts
    assert [nodes for _, nodes in flap] == [6, 4] * 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=3", "has no 'speed', but nodes, lifetime"),
        ("nodes=0", "nodes is '0'"),
        ("nodes=4 nodes=5", "has nodes twice"),
        ("lifetime=fast", "lifetime is 'fast'. Write a duration"),
        ("group=2", "group is '2'. Write a number from 0 to 1"),
        ("lifetime=0", "lifetime is 0. Write a duration above 0"),
        ("lifetime=1s nodes=10000 length=1000d", "planner plays at most 20,000"),
    ],
)
def test_wrong_rates_are_refused(text, said):
    """With the keys that there are."""
    with pytest.raises(UserError) as refused:
        parse_regime(text)
    assert said in str(refused.value)


def test_durations_and_notices():
    """As people write them."""
    assert [parse_duration(text, "x") for text in ("90", "1.5m", "5min", "2h", "1d")] == [90, 90, 300, 7200, 86400]
    assert parse_notice("30s:0.5") == Notice(seconds=30, share=0.5)
    assert parse_notice("2m") == Notice(seconds=120, share=1)
    for text in ("", "soon", "30s:", "30s:2", "30s:x", "-3"):
        with pytest.raises(UserError, match="--notice"):
            parse_notice(text)
