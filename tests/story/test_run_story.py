"""The one fold over a ledger: how a run stands after any records."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import BEGAN_S, commit, evaluation, event, eventful, header, measurement, step

from planner.events.event import facts_of
from planner.events.saves import CommitInterval, MeasuredInterval
from planner.plan import BatchSizes, make_plan
from planner.store.records import EventRecord, MeasurementRecord
from planner.story.run_story import Counts, RunStory, StoryFold, story_of


@st.composite
def histories(draw):
    """The records of a run as it may go: steps, late commits, deaths, hand-overs in memory, other launches."""
    records, at, durable, now_s = [], 0, 0, BEGAN_S
    for number in range(1, draw(st.integers(1, 5)) + 1):
        is_held = number > 1 and at > durable and draw(st.booleans())
        at = draw(st.integers(durable + 1, at)) if is_held else durable
        now_s += 30.0
        launch = draw(st.sampled_from("ab"))
        workers = draw(st.integers(1, 9))
        records.append(header(number, workers, at, time_s=now_s, parent_is_held=is_held, launch_id=launch))
        for kind in draw(st.lists(st.sampled_from(["step", "step", "step", "commit", "event", "eval", "measured"]))):
            if kind == "step":
                records.append(step(at))
                at, now_s = at + 1, now_s + 1.0
            elif kind == "commit" and at > durable:
                durable = draw(st.integers(durable + 1, at))
                records.append(commit(durable, generation=number))
            elif kind == "eval":
                records.append(evaluation(at))
            elif kind == "measured" and at:
                records.append(measurement(at, now_s))
            elif kind == "event":
                records.append(event("something", now_s))
    return records


@given(histories())
def test_what_is_durable_is_done_and_what_is_held_lies_between(records):
    """After every record."""
    fold = StoryFold()
    for record in records:
        fold.add(record)
        story = fold.story
        assert 0 <= story.committed_step <= story.held_step <= story.step <= story.total_steps or not story.total_steps
        assert story.times.total_s >= 0
        assert len(story.measured) <= 5


@given(histories(), st.data())
def test_looking_at_a_story_changes_nothing(records, data):
    """However often a follower reads, the story after all records is the same."""
    fold = StoryFold()
    for record in records:
        fold.add(record)
        if data.draw(st.booleans()):
            assert fold.story == fold.story
    assert fold.story == story_of(records)


@given(histories())
def test_events_change_no_step(records):
    """What is only told, and what is only measured, moves neither a step nor a commit."""
    story = story_of(records)
    others = [record for record in records if not isinstance(record, EventRecord | MeasurementRecord)]
    without = story_of(others)
    same = {"times": story.times, "now_s": story.now_s, "measured": story.measured}
    assert replace(without, **same) == story


@given(histories())
def test_each_record_is_news_or_a_number(records):
    """Steps and measurements are not told. Everything else is, with the time at which it was written."""
    for record, news in zip(records, map(StoryFold().add, records), strict=True):
        assert (news is None) == (record.kind in {"step", "measurement"})
        if news:
            assert news.record is record
            assert news.time_s >= BEGAN_S
            assert news.again >= 0


def test_an_eventful_run():
    """Two steps are done again after a node was lost. A change of workers within a launch is a resize."""
    story = story_of(eventful())
    assert (story.step, story.total_steps, story.committed_step, story.generation, story.world_size) == (
        160,
        160,
        160,
        4,
        4,
    )
    assert story.plan == make_plan(BatchSizes(global_batch=64, max_micro=8), 4)
    assert story.counts == Counts(steps_done=162, steps_redone=2, samples=162 * 64, tokens=16200, resizes=3, commits=4)
    assert (story.last_step.step, story.last_eval.loss, story.last_commit.step) == (159, 2.5, 160)


def test_counts_begin_again_with_each_launch():
    """A step that another launch had done is still done again."""
    records = [header(1, 2, 0, launch_id="a"), step(0), commit(1), step(1), header(2, 3, 1, launch_id="b"), step(1)]
    assert story_of(records).counts == Counts(steps_done=1, steps_redone=1, samples=64, tokens=100)


def test_a_held_step_is_not_durable():
    """Its generation keeps the commit before it, until it has committed."""
    records = [header(1, 2, 0), *map(step, range(5)), commit(3), header(2, 2, 5, parent_is_held=True)]
    story = story_of(records)
    assert (story.committed_step, story.held_step, story.step) == (3, 5, 5)
    story = story_of([*records, step(5), commit(6)])
    assert (story.committed_step, story.held_step) == (6, 6)


def test_a_plan_of_another_version_is_not_known():
    """The rest is."""
    story = story_of([header(1, 2, 0, layout_version=99), step(0)])
    assert (story.plan, story.step, story.world_size) == (None, 1, 2)


def test_a_run_may_begin_in_the_middle():
    """A driver that resumes does not read what was before it. Before the first header, its step is durable."""
    fold = StoryFold(step=7, total_steps=20)
    assert fold.story == RunStory(step=7, total_steps=20, committed_step=7)
    assert fold.add(header(3, 2, 5)).again == 2


@pytest.mark.parametrize("record", [step(3), commit(3), evaluation(3)])
def test_without_a_header_no_time_is_known(record):
    """Durations alone give none. A record with its own time does."""
    fold = StoryFold()
    news = fold.add(record)
    assert news is None or news.time_s is None
    assert fold.story.now_s == 0.0
    fold.add(event("x", BEGAN_S))
    assert (fold.story.now_s, fold.story.times.paused_s) == (BEGAN_S, 0.0)
    assert fold.add(evaluation(4)).time_s == BEGAN_S + 0.25


def test_the_last_choice_of_an_interval_counts():
    """By the event's facts. One of an old ledger has none, and forged facts are no choice."""
    measured = MeasuredInterval(
        steps=9, work_s=4.0, save_s=1.0, write_s=2.0, between_losses_s=60.0, losses=1, observed_s=60.0
    )
    choices = [CommitInterval(steps=steps, work_s=4.0, measured=measured, steps_left=None) for steps in (9, 8)]
    told = [event("x", BEGAN_S, each.name).model_copy(update={"facts": facts_of(each)}) for each in choices]
    forged = event("x", BEGAN_S, CommitInterval.name)
    assert story_of([header(1, 2, 0), *told, event("every 9 steps", BEGAN_S), forged]).interval == choices[1]
    assert story_of([header(1, 2, 0), forged]).interval is None
