"""How long a stop takes, and what is said about it: from what the loop last reported."""

from dataclasses import replace

import pytest
from simulated_cluster import Cluster

from planner.elastic.controller import ElasticController
from planner.elastic.group import hang, silence_limit_s
from planner.elastic.history import NO_COMMIT, LastCommit
from planner.elastic.stopping import grace_s, last_step_text, needed_text, stop_s, stop_text


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


STOP = "all workers finish their step, then it becomes durable"


@pytest.mark.parametrize(
    ("facts", "passed_s", "text"),
    [
        ({}, 0, f"{STOP}: about 12 s (the last commit took 10 s)"),
        ({}, 1, f"{STOP}: about 11 s (the last commit took 10 s)"),
        ({}, 9, f"{STOP}: about 10 s (the last commit took 10 s)"),
        (
            {"held": 110, "durable": 100},
            0,
            f"{STOP}: about 20 s (the last commit took 10 s). When step 120 was done, step 110 was still being written",
        ),
        (
            {"held": 120, "durable": 100},
            4,
            f"{STOP}: about 16 s (the last commit took 10 s). When step 120 was done, step 120 was still being written",
        ),
        ({"commit_s": 0.0}, 0, f"{STOP} (no commit was measured yet, so the time is not known)"),
        ({"steps": 1}, 0, f"{STOP} (the last commit took 10 s, and no step was measured yet)"),
        ({"commit_s": 0.01}, 9, f"{STOP}: less than 0.1 s (the last commit took 0.01 s)"),
    ],
)
def test_a_stop_says_what_it_waits_for(facts, passed_s, text):
    """The step that runs, the commit in flight beside it and the last commit, without the time that has passed."""
    known, group = known_of(**facts)
    assert stop_text(known, group, group.stepped_s + passed_s) == text


LAST = "step 120 is done: waiting until step 120 is durable"


@pytest.mark.parametrize(
    ("facts", "passed_s", "text"),
    [
        ({}, 0, f"{LAST}: about 10 s (the last commit took 10 s)"),
        ({}, 7, f"{LAST}: about 3 s (the last commit took 10 s)"),
        ({}, 14, f"{LAST}: longer than usual, 14 s so far (the last commit took 10 s)"),
        ({"held": 110, "durable": 100}, 5, f"{LAST} after step 110: about 15 s (the last commit took 10 s)"),
        ({"held": 120, "durable": 100}, 0, f"{LAST}: about 10 s (the last commit took 10 s)"),
        (
            {"step": 160, "has_eval": True},
            0,
            (
                "all 160 steps are done: waiting until step 160 is durable, and then evaluated: about 10 s "
                "(the last commit took 10 s)"
            ),
        ),
        ({"held": 120, "durable": 120}, 0, ""),
    ],
)
def test_after_the_last_step_only_its_commit_is_waited_for(facts, passed_s, text):
    """At a stop and at the end of the run. Nothing is said if the step is durable already."""
    known, group = known_of(**facts, is_last=True)
    assert last_step_text(known, group, group.stepped_s + passed_s) == text
    assert stop_text(known, group, group.stepped_s + passed_s) == (text or "step 120 is done and durable")


def test_a_commit_in_flight_counts_with_the_rest_of_its_time():
    """It was held at an earlier step. Training went on while it was written."""
    known, group = known_of(held=110, durable=100)
    group = replace(group, stepped_s=group.held_since_s + 7)
    assert ": about 13 s (" in stop_text(known, group, group.stepped_s)
    group = replace(group, is_last=True)
    assert ": about 13 s (" in last_step_text(known, group, group.stepped_s)


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
    assert controller.stop_text == f"{STOP} (the last commit took 5 s, and no step was measured yet)"
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
    ("facts", "text"),
    [
        ({}, "a step and a commit take 19 s"),
        ({"held": 110, "durable": 100}, "a step, the commit of step 110 and another commit take 24 s"),
        ({"commit_s": 0.0}, "no commit was measured yet"),
        ({"steps": 1}, "no step was measured yet"),
    ],
)
def test_what_a_stop_needs(facts, text):
    """Beside the time that a notice leaves."""
    assert needed_text(*known_of(**facts)) == text


def test_a_notice_to_all_nodes_says_whether_the_time_suffices():
    """When it comes, and when the workers stop."""
    cluster = Cluster(2)
    cluster.commit_s = 4.0
    cluster.run(30)
    for node in ("n0", "n1"):
        cluster.drain(node, 60)
    cluster.run(58)
    waits = [text for text in cluster.texts if "training continues as long as possible" in text]
    assert len(waits) == 1
    assert "(a step and a commit take 11 s, and 60 s are left)" in waits[0]
    assert "a step and a commit take 11 s: the notice is long enough to keep all steps" in cluster.texts
