"""A ledger as a story: phases, changes, curves, times. Made-up records, no files."""

import pytest
from made_runs import (
    BEGAN_S,
    GLOBAL_BATCH,
    IDENTITY,
    commit,
    evaluation,
    event,
    eventful,
    header,
    long,
    measured,
    measurement,
    step,
    story_of,
)

from planner.plan import BatchSizes, make_plan
from planner.story.curves import MOST_POINTS, Column, StepTable, curve
from planner.story.teller import MOST_CHARS, MOST_EVENTS, StoryTeller


def test_a_phase_is_what_one_generation_did():
    """Its workers, split, steps and times. Steps that the next one did again do not count."""
    phases = story_of(eventful()).phases
    assert [phase.workers for phase in phases] == [4, 3, 5, 4]
    assert [(phase.first_step, phase.kept_step, phase.end_step) for phase in phases] == [
        (0, 35, 35),
        (35, 84, 84),
        (84, 110, 112),
        (110, 160, 160),
    ]
    assert [(phase.start_s, phase.end_s) for phase in phases[:2]] == [(10.25, 45.75), (60.0, 109.5)]
    assert phases[1].shares == ((1, 22), (2, 21))
    assert {value for phase in phases for value in (*phase.batch.low, *phase.batch.high)} == {64}
    assert phases[0].samples_per_s == 64


def test_a_change_has_its_cause_and_its_reasons():
    """A notice, workers that join, and a lost node with the steps that were done again."""
    changes = story_of(eventful()).changes
    assert [(change.cause, change.before, change.after, change.again) for change in changes] == [
        ("notice", 4, 3, 0),
        ("workers join", 3, 5, 0),
        ("node lost", 5, 4, 2),
    ]
    assert changes[0].reasons == ("resize: notice for 1 worker of 4, 28 s left; room for 3",)
    assert changes[2].reasons == ("1 node lost: training resumes from the last commit",)
    assert (changes[2].at_s, changes[2].resumed_s) == (148.5, 181.0)


def test_the_largest_step_that_a_ledger_may_name_is_told():
    """One more is done after it."""
    assert story_of([header(1, 2, 0), step(2**63 - 1, cursor=0)]).loss.x == (2.0**63,)


@pytest.mark.parametrize(
    ("workers", "launch", "cause"),
    [
        (4, "a", "restart"),
        (2, "a", "workers leave"),
        (5, "b", "another driver"),
    ],
)
def test_a_change_without_a_message_has_a_cause(workers, launch, cause):
    """By the numbers of workers and the launches."""
    records = [header(1, 4, 0, launch_id="a"), step(0), commit(1), header(2, workers, 1, launch_id=launch), step(1)]
    (change,) = story_of(records).changes
    assert (change.cause, change.reasons) == (cause, ())


def test_steps_that_were_undone_are_in_no_curve():
    """They had a loss of 99. They are counted, with their samples."""
    story = story_of(eventful())
    assert max(story.loss.high) == 5
    assert (story.end.step, story.samples, story.undone_steps, story.undone_samples) == (160, 160 * 64, 2, 128)
    assert story.end.times.lost_s == 2
    assert story.held_out.x == (0, 160)
    assert story.held_out.y == (5.5, 2.5)
    assert "eval/accuracy" in story.curves
    assert story.commits.number == 4
    assert story.commits.most_at_risk_s == 50


def test_steps_beside_a_write_stay_at_risk():
    """A commit is on record some steps after its own: those are at risk until the next one is durable."""
    records = [header(1, 4, 0), *map(step, range(13)), commit(10), *map(step, range(13, 24)), commit(20)]
    story = story_of(records)
    assert (story.commits.at_risk.x, story.commits.at_risk.y) == ((10, 20), (13, 14))
    assert (story.commits.most_at_risk_s, story.undone_steps, story.end.step) == (14, 0, 24)
    [phase] = story_of([*records, header(2, 4, 20), step(20)]).phases[:1]
    assert (phase.kept_step, phase.end_step) == (20, 24)


def test_an_evaluation_that_a_generation_repeats_counts_once():
    """It is of the same weights."""
    records = [header(1, 2, 0), step(0), commit(1), evaluation(1, 3.0), header(2, 2, 1), evaluation(1, 3.0), step(1)]
    assert story_of(records).held_out.x == (1,)


def test_measurements_become_curves():
    """Tokens per second, utilization, memory, and the division of a step. They are empty if nobody measured."""
    known = story_of(measured()).measured
    assert set(known.tokens_per_s.y) == {500}
    assert set(known.mfu.y) == {0.4}
    assert (known.mean_tokens_per_s, known.mean_mfu) == (500, 0.4)
    assert set(known.memory_bytes.y) == {3 * 2**30}
    assert known.step_parts == {"data": 4, "forward": 12, "backward": 20, "update": 2, "communication": 8}
    assert known.seconds == 40
    unknown = story_of(eventful()).measured
    assert (unknown.mfu.x, unknown.mean_mfu, unknown.step_parts) == ((), 0, {})


def test_a_phase_by_length_has_what_was_measured():
    """Rounds and efficiency differ from step to step, so they are means. They are 0 before the first measurement."""
    plan = make_plan(BatchSizes(global_batch=GLOBAL_BATCH, max_micro=8, max_tokens=100), 2)
    began = header(1, 2, 0, layout_version=2, max_tokens=100, plan_digest=plan.digest)
    (phase,) = story_of([began, step(0)]).phases
    assert (phase.by_length, phase.rounds, phase.efficiency) == (True, 0, 0)
    costs = [{"cost": 900, "round_cost": 1000, "num_rounds": 25}, {"cost": 500, "round_cost": 1000, "num_rounds": 20}]
    records = [began, step(0), *(measurement(1, BEGAN_S, **each) for each in costs)]
    (phase,) = story_of(records).phases
    assert (phase.rounds, phase.efficiency) == (2.25, 0.7)


def test_the_global_batches_are_in_order():
    """A change that the user accepted is one more entry."""
    changed = IDENTITY.model_copy(update={"global_batch": 128})
    records = [header(1, 2, 0), step(0), commit(1), header(2, 2, 1, identity=changed), step(1, samples=128)]
    assert story_of(records).global_batches == (64, 128)


@pytest.mark.parametrize("records", [[], [header(1, 4, 0)]], ids=["nothing", "a header"])
def test_a_run_without_a_step_has_a_story(records):
    """Without phases, changes and curves."""
    story = story_of(records)
    assert (story.phases, story.changes, story.loss.x, story.end.step) == ((), (), (), 0)


def test_a_long_run_has_a_short_story():
    """Few points, with the least and the largest value of each. No point mixes two generations."""
    story = story_of(long(20_000))
    for each in (story.loss, story.loss_by_time, story.loss_by_samples, *story.curves.values()):
        assert len(each.x) <= MOST_POINTS
    assert len(story.speed.x) <= MOST_POINTS + len(story.phases)
    assert (min(story.loss.low), max(story.loss.high)) == (3.0, 3.999)
    assert not story.loss.is_exact
    assert story.end.step == 20_000


def test_messages_are_bounded():
    """The newest ones, each cut."""
    records = [header(1, 4, 0), step(0), *(event(f"{number} " + "x" * 1000, BEGAN_S) for number in range(1000))]
    story = story_of(records)
    assert len(story.events) == MOST_EVENTS
    assert story.events[-1].text.startswith("999 ")
    assert max(len(each.text) for each in story.events) <= MOST_CHARS + 4


def test_a_kind_that_nobody_knows_is_not_kept():
    """Its name may be as long as a line."""
    story = story_of([header(1, 4, 0), step(0), event("?", BEGAN_S + 9, "x" * 10_000)])
    assert [told.event for told in story.phases[0].told] == [""]


def test_a_curve_keeps_extremes():
    """Of each bucket, also when it is made thinner."""
    values = [float(number % 10) for number in range(1000)]
    made = curve(range(1000), values, most=50)
    assert len(made.x) == 50
    assert (set(made.low), set(made.high), set(made.y)) == ({0}, {9}, {4.5})
    thin = made.thinned(7)
    assert len(thin.x) <= 7
    assert (set(thin.low), set(thin.high)) == ({0}, {9})


def test_a_curve_breaks_where_it_is_told():
    """No point has values of both sides."""
    made = curve(range(100), [0.0] * 33 + [1.0] * 67, breaks=[33], most=10)
    assert made.is_exact


def test_columns_forget_undone_steps():
    """From the step on that is done again."""
    column, table = Column(), StepTable("a", "b")
    for number in range(5):
        column.add(number, number)
        table.add(number, number, -number)
    column.cut(3)
    table.cut(3)
    assert list(column.steps) == list(table.steps) == [0, 1, 2]
    assert list(table["b"]) == [0, -1, -2]
    column.cut(3)
    assert list(column.values) == [0, 1, 2]


def test_a_commit_whose_record_was_lost_is_durable_by_its_manifest():
    """A kill between manifest and record. A commit that a later generation has undone does not count."""
    teller = StoryTeller()
    for record in [header(1, 4, 0), step(0), commit(1), step(1), header(2, 4, 2), *map(step, range(2, 6))]:
        teller.add(record)
    recorded, lost, newest = commit(1).name, f"{2:012d}-{1:06d}", f"{5:012d}-{2:06d}"
    undone = f"{3:012d}-{1:06d}"
    commits = teller.story("runs/made", "made", durable=(recorded, lost, undone, newest)).commits
    assert (commits.number, commits.unrecorded) == (1, (2, 5))
    assert teller.story("runs/made", "made", durable=(recorded,)).commits.unrecorded == ()
