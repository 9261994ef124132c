"""A run that leaves places unused says why: once per reason and size, whatever the reason is."""

import math
import random
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import Blocking, Cluster
from test_next_decision import Seen, said

from planner.elastic.places import UnusedPlaces
from planner.plan import ReasonKind


def told(cluster):
    return [text for text in cluster.texts if "used, because" in text]


def test_nothing_is_told_if_all_places_are_used():
    """Also after nodes have come and gone."""
    cluster = Cluster(4).run(60)
    cluster.add()
    cluster.run(60)
    cluster.drain("n0", 30)
    assert told(cluster.run(60))[1:] == []
    assert cluster.sizes == [4, 5, 4]
    assert all("resize in" in text for text in told(cluster))


def test_workers_that_would_not_make_a_step_shorter_are_told():
    """13 workers compute 4 samples one after another, like 12."""
    cluster = Cluster(13).run(60)
    reason = "a step takes the time of 4 samples at 13 workers and at 12: nothing to gain"
    assert told(cluster) == [f"12 of 13 places used, because {reason}"]


def test_the_bound_of_the_job_is_told():
    """`workers.max` is below the room. It is not blamed for places that would help nobody."""
    assert told(Cluster(6, most=4).run(60)) == ["4 of 6 places used, because workers.max is 4"]


def test_the_global_batch_is_told_if_it_is_the_bound():
    """A worker without a sample would only take part in collectives."""
    texts = told(Cluster(6, global_batch=4, most=4).run(60))
    assert texts == ["4 of 6 places used, because a global batch of 4 samples has work for no more workers"]


def test_the_end_of_a_run_is_told_as_a_reason_to_keep():
    """The pause would not be won back."""
    cluster = Cluster(2, total_steps=13, grow_s=9.0).run(5)
    cluster.add()
    *_, text = told(cluster.run(10))
    assert text.startswith("2 of 3 places used, because it would take ")
    assert text.endswith(" of training remain: 2 -> 3, 1.6 s per step instead of 2.4 s")


def test_a_second_reason_is_told_although_the_room_stays():
    """First nothing was measured. Then the rest of the run is too short."""
    cluster = Cluster(3, global_batch=240, sample_s=5.0, total_steps=5, grow_s=1000.0).run(30)
    cluster.add()
    first, second = told(cluster.run(2500, tick_s=1))
    assert "no step was measured yet" in first
    assert "to win back" in second
    assert cluster.sizes == [3]


def test_two_reasons_are_told_together():
    """Of eight places the job may use six, and for a fifth worker a step is not shorter by enough yet."""
    cluster = Cluster(4, global_batch=240, sample_s=5.0, most=6).run(30)
    cluster.add(4)
    (text,) = told(cluster.run(20))
    assert text.startswith("4 of 8 places used, because workers.max is 6, and no step was measured yet, and ")
    assert ": 4 -> 6, the time of 40 samples per step" in text


def test_a_hold_is_told_with_its_cause_and_not_again():
    """The text about the newcomers that failed says how many workers are used. The next decision says it as long."""
    cluster = type("SeenBlocking", (Blocking, Seen), {})(2, newcomers="failing").run(30)
    cluster.add()
    cluster.run(20)
    assert any("so planner uses no more than 2 workers for 30 s" in text for text in cluster.texts)
    assert not any("failed, and planner tries" in text for text in told(cluster))
    assert "2 of 3 places used, because a start with more than 2 workers failed, and planner tries more in" in (
        said(cluster).text
    )


def test_a_node_that_is_left_out_is_told_with_the_places():
    """Once, however long it stays."""
    cluster = Cluster(4).run(30)
    for _ in range(3):
        cluster.committed = cluster.step
        cluster.fail(blamed={"n2"})
        cluster.run(30)
    assert told(cluster.run(600)) == ["3 of 4 places used, because node n2 is left out"]


def test_a_rehearsal_has_nothing_to_tell():
    """It changes its size by its own rule."""
    cluster = Cluster(6, most=4)
    cluster.controller = cluster.new_controller(eager=True)
    assert told(cluster.run(60)) == []
    assert cluster.sizes == [4]


def test_the_next_decision_names_the_places():
    """In the words of the note, as long as it holds."""
    assert said(Seen(6, most=4).run(60)).text == "4 of 6 places used, because workers.max is 4"


def test_a_reason_that_nobody_could_write_down_is_told_to_the_next_group():
    """A group writes its notes at its next step. This one died before it had done any."""
    cluster = Cluster(6, most=4).run(1)
    assert cluster.step == 0
    assert len(told(cluster)) == 1
    cluster.fail(dead={"n0"})
    assert len(told(cluster.run(60))) == 2
    cluster.committed = cluster.step
    cluster.fail(dead={"n1"})
    assert len(told(cluster.run(60))) == 2


def test_two_days_on_a_cluster_that_changes_every_minute_fills_no_ledger():
    """The reason is one. Only twice as many unused places are news."""
    dice, cluster = random.Random(7), Cluster(5, most=4, sample_s=1.0)
    for _ in range(2 * 24 * 60):
        cluster.nodes = [f"n{number}" for number in range(dice.randint(5, 40))]
        cluster.run(60, tick_s=60)
    assert cluster.sizes == [4]
    assert 1 <= len(told(cluster)) <= 6


KINDS = st.frozensets(st.sampled_from(sorted(set(get_args(ReasonKind)) - {"hold"})), min_size=1, max_size=2)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 1000), KINDS), max_size=60))
def test_each_reason_is_told_at_each_size_and_seldom_again(seen):
    """At first, and whenever twice as many places are unused. So at most ten times for a thousand places."""
    last, count = {}, {}
    for size, num_unused, kinds in seen:
        found = UnusedPlaces(size=size, places=size + num_unused, reasons=dict.fromkeys(kinds, "a number"))
        if found.is_news(last):
            last = {**last, found.key: found.num_unused}
            count[found.key] = count.get(found.key, 0) + 1
        assert found.key in last
        assert found.num_unused < 2 * last[found.key] or found.num_unused == last[found.key]
    assert all(number <= 1 + math.log2(1000) for number in count.values())


@pytest.mark.parametrize("size", [1, 3])
def test_the_text_is_no_part_of_what_a_reason_is(size):
    """Its numbers change with time."""
    found = UnusedPlaces(size=size, places=4, reasons={"more_may_come": "resize in 10 s"})
    assert not replace(found, reasons={"more_may_come": "resize in 9 s"}).is_news({found.key: found.num_unused})
    assert replace(found, size=2).is_news({found.key: found.num_unused})
    assert replace(found, reasons={"not_measured": "resize in 10 s"}).is_news({found.key: found.num_unused})
