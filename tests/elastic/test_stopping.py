"""How long a stop takes, and what is said about it: from what the loop last reported."""

from dataclasses import replace

import pytest
from simulated_cluster import Cluster

from planner.elastic.controller import ElasticController
from planner.elastic.group import hang, silence_limit_s
from planner.elastic.history import NO_COMMIT, LastCommit
from planner.elastic.stopping import durable_stop, grace_s, hand_over_s, last_step, stop_needs, stop_s
from planner.events.outlook import AwaitsDurable, LastStepDurable, StopsDurably, StopTime
from planner.events.stopping import NoticeSuffices, StopNeeds, TrainsOn


def known_of(*, held=0, durable=0, step=120, total_steps=160, is_last=False, commit_s=10.0, has_eval=False, steps=3):
    """What the controller knows of two workers after `steps` steps of 2 s, the last of them number `step`."""
    cluster = Cluster(2)
    controller = cluster.controller = cluster.new_controller(has_eval=has_eval)
    controller.started(("a", "b"))
    for number in range(step - steps, step):
        controller.reported(
            {
                "step": number,
                "total_steps": total_steps,
                "world_size": 2,
                "seconds": 2.0,
                "held_step": held,
                "step_cost": 8,
                "num_again": 0,
                "copied_step": 0,
                "durable_step": durable,
                "is_last": is_last and number == step - 1,
                "commit_s": commit_s,
                "eval_s": 0.0,
            }
        )
    return controller.state.known, controller.state.group


def test_a_commit_in_flight_makes_a_stop_longer():
    """It must land before the last one begins. By then it is partly written."""
    assert stop_s(*known_of()) == pytest.approx(2 * 2 + 1.5 * 10)
    assert stop_s(*known_of(held=110, durable=100)) == pytest.approx(2 * 2 + 2 * 10)
    assert stop_s(*known_of(held=110, durable=110)) == pytest.approx(2 * 2 + 1.5 * 10)


def takes(left_s, commit_s=10.0, passed_s=0.0):
    return StopTime(commit_s=commit_s, left_s=left_s if left_s is None else pytest.approx(left_s), passed_s=passed_s)


@pytest.mark.parametrize(
    ("facts", "passed_s", "held_step", "time"),
    [
        ({}, 0, None, takes(12)),
        ({}, 1, None, takes(11, passed_s=1)),
        ({}, 9, None, takes(10, passed_s=9)),
        ({"held": 110, "durable": 100}, 0, 110, takes(20)),
        ({"held": 120, "durable": 100}, 4, 120, takes(16, passed_s=4)),
        ({"commit_s": 0.0}, 0, None, takes(None, commit_s=None)),
        ({"steps": 1}, 0, None, takes(None)),
        ({"commit_s": 0.01}, 9, None, takes(0.01, commit_s=0.01, passed_s=9)),
    ],
)
def test_a_stop_says_what_it_waits_for(facts, passed_s, held_step, time):
    """The step that runs, the commit in flight beside it and the last commit, without the time that has passed."""
    known, group = known_of(**facts)
    found = durable_stop(known, group, group.stepped_s + passed_s)
    assert found == StopsDurably(time=time, done_step=120, held_step=held_step)


def awaits(time, *, step=120, is_end=False, after_step=None):
    return AwaitsDurable(time=time, step=step, is_end=is_end, after_step=after_step, is_evaluated=is_end)


@pytest.mark.parametrize(
    ("facts", "passed_s", "found"),
    [
        ({}, 0, awaits(takes(10))),
        ({}, 7, awaits(takes(3, passed_s=7))),
        ({}, 14, awaits(takes(-4, passed_s=14))),
        ({"held": 110, "durable": 100}, 5, awaits(takes(15, passed_s=5), after_step=110)),
        ({"held": 120, "durable": 100}, 0, awaits(takes(10))),
        ({"step": 160, "has_eval": True}, 0, awaits(takes(10), step=160, is_end=True)),
        ({"held": 120, "durable": 120}, 0, None),
    ],
)
def test_after_the_last_step_only_its_commit_is_waited_for(facts, passed_s, found):
    """At a stop and at the end of the run. Nothing is said if the step is durable already."""
    known, group = known_of(**facts, is_last=True)
    assert last_step(known, group, group.stepped_s + passed_s) == found
    assert durable_stop(known, group, group.stepped_s + passed_s) == (found or LastStepDurable(step=120))


def test_a_commit_in_flight_counts_with_the_rest_of_its_time():
    """It was held at an earlier step. Training went on while it was written."""
    known, group = known_of(held=110, durable=100)
    group = replace(group, stepped_s=group.held_since_s + 7)
    assert durable_stop(known, group, group.stepped_s).time == takes(13)
    group = replace(group, is_last=True)
    assert last_step(known, group, group.stepped_s).time == takes(13)


def test_a_commit_of_an_earlier_launch_is_known():
    """After a resume, until this launch has made a commit itself. Fewer workers take longer for it.

    No group is ended by it: storage may be slower now.
    """
    cluster = Cluster(2)
    known = cluster.controller.state.known
    controller = ElasticController(
        known.rules,
        cost=known.history.cost,
        clock=lambda: 0.0,
        commit=LastCommit(seconds=5.0, world_size=4, is_measured=False),
    )
    controller.started(("a", "b"))
    assert controller.stop.time == takes(None, commit_s=5.0)
    assert controller.history.commit_s(2) == 10.0
    assert controller.history.measured_commit_s(2) == 0.0
    known, group = controller.state.known, controller.state.group
    unknown, stored, measured = (
        replace(known.history, commit=commit)
        for commit in (
            NO_COMMIT,
            LastCommit(seconds=5000.0, is_measured=False),
            LastCommit(seconds=5000.0),
        )
    )
    assert silence_limit_s(group, unknown) == silence_limit_s(group, stored) < silence_limit_s(group, measured)
    now_s = group.seen_s + 10_000.0
    deaf = replace(group, deaf_since={0: group.seen_s}, looked_s=now_s)
    assert hang(deaf, unknown, now_s) == hang(deaf, stored, now_s) != hang(deaf, measured, now_s)
    assert grace_s(replace(known, history=known.history.after_step(2, 100.0)), group) == 10.0
    assert controller.history.after_commit(2, 7.0).measured_commit_s(1) == 14.0


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, StopNeeds(stop_s=19, lacks=None, held_step=None)),
        ({"held": 110, "durable": 100}, StopNeeds(stop_s=24, lacks=None, held_step=110)),
        ({"commit_s": 0.0}, StopNeeds(stop_s=4, lacks="commit", held_step=None)),
        ({"steps": 1}, StopNeeds(stop_s=15, lacks="step", held_step=None)),
    ],
)
def test_what_a_stop_needs(facts, found):
    """Beside the time that a notice leaves."""
    assert stop_needs(*known_of(**facts)) == found


def test_a_step_in_flight_counts_with_its_rest():
    """And one that takes longer than usual counts as nearly done."""
    known, group = known_of()
    later = [replace(group, looked_s=group.stepped_s + passed_s) for passed_s in (0.0, 1.5, 2.0, 60.0)]
    assert [stop_s(known, each) for each in later] == pytest.approx([19, 17.5, 17, 17])
    assert hand_over_s(known, later[0]) - hand_over_s(known, later[1]) == pytest.approx(1.5)


def test_a_notice_to_all_nodes_says_whether_the_time_suffices():
    """When it comes, and when the workers stop."""
    cluster = Cluster(2)
    cluster.commit_s = 4.0
    cluster.run(30)
    for node in ("n0", "n1"):
        cluster.drain(node, 60)
    cluster.run(58)
    # The rest of a step of 2.4 s, another one, and 1.5 commits.
    needs = StopNeeds(stop_s=pytest.approx(9.6, abs=1.3), lacks=None, held_step=None)
    assert cluster.told(TrainsOn) == [TrainsOn(room=0, needs=needs, left_s=pytest.approx(60, abs=0.5))]
    assert cluster.told(NoticeSuffices) == [NoticeSuffices(needs=needs)]
