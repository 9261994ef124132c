"""Surveys as states, histories and lines of text."""

import dataclasses

import pytest

from planner.errors import printable
from planner.report.run_table import detail_text, run_detail, run_line, run_table
from planner.report.text_columns import ago, hanging
from planner.store.records import CommitRecord, EvalRecord, EventRecord, GenerationRecord, StepRecord, TrainingIdentity
from planner.store.run_status import RunStatus
from planner.store.survey import SegmentEnds, Survey

BEGAN_S = 1_700_000_000.0
IDENTITY = TrainingIdentity(
    global_batch=4, seed=7, data="a" * 64, model="0" * 64, optimizer="sgd", equality="balanced", recipe="0" * 64
)


def header(generation, first_step, world_size=2, total_steps=8):
    return GenerationRecord(
        generation=generation,
        run_id="r",
        parent="x" if first_step else "",
        parent_sha256="e" * 64 if first_step else "",
        step=first_step,
        cursor=4 * first_step,
        world_size=world_size,
        max_micro=4,
        layout_version=1,
        plan_digest="p",
        identity=IDENTITY,
        job_digest="0" * 64,
        total_steps=total_steps,
        num_samples=50,
        facts={},
        changed=(),
        time_s=BEGAN_S + 100 * generation,
    )


def steps(*numbers):
    return tuple(
        StepRecord(
            step=n, cursor=0, samples=4, tokens=4, checksum="0" * 16, loss=1.0, grad_norm=1.0, lr=0.1, seconds=0.5
        )
        for n in numbers
    )


def commit(step):
    return CommitRecord(step=step, name=f"{step:012d}-000001", sha256="e" * 64, seconds=1.0)


def segment(generation, first_step, *tail, committed_step=-1, **named):
    head = header(generation, first_step, **named)
    return SegmentEnds(generation=generation, header=head, records=(head, *tail), committed_step=committed_step)


def survey(*segments, **found):
    return Survey(**{"url": "runs/x", "problem": "", "segments": segments, "num_generations": len(segments), **found})


STOPPED = EventRecord(event="generation_stopped", message="stopped: the data changed", time_s=BEGAN_S)


@pytest.mark.parametrize(
    ("first", "ended", "end_step", "recomputed"),
    [
        (segment(1, 0, *steps(0, 1), commit(2), committed_step=2), "with a commit", 2, 0),
        (segment(1, 0, *steps(0, 1, 2), committed_step=2), "without notice", 3, 1),
        (segment(1, 0), "before its first step", 0, 0),
        (segment(1, 0, *steps(0, 1), commit(2), STOPPED, committed_step=2), "stopped: the data changed", 2, 0),
        # The last steps may be out of sight behind a flood of events.
        (segment(1, 0, STOPPED, *steps(), committed_step=2), "stopped: the data changed", 2, 0),
    ],
)
def test_a_generation_says_how_it_ended(first, ended, end_step, recomputed):
    """The next one says how many of its steps were computed again."""
    next_step = min(max(0, first.committed_step), 2)
    line, after = run_detail(survey(first, segment(2, next_step, world_size=3))).generations
    assert (line.ended, line.end_step, line.recomputed_before) == (ended, end_step, 0)
    assert after.recomputed_before == recomputed
    assert (after.split, after.first_step) == ("1 x 2 + 2 x 1", next_step)


def test_recomputed_steps_stand_where_an_audit_puts_them():
    """A generation without a commit is in no lineage, so the next one with a commit has its steps too."""
    lost = segment(1, 0, *steps(0, 1, 2)), segment(2, 0, *steps(0))
    kept = segment(3, 0, *steps(0, 1), commit(2), committed_step=2)
    newest = segment(4, 2)
    lines = run_detail(survey(*lost, kept, newest)).generations
    assert [line.recomputed_before for line in lines] == [0, 0, 4, 0]
    assert "recomputed" in "".join(detail_text(run_detail(survey(*lost, kept)), BEGAN_S))


def test_the_newest_generation_of_a_live_run_is_running():
    """Its last record does not matter, and no step was computed again yet."""
    (line,) = run_detail(survey(segment(1, 0, *steps(0)), driver="alive")).generations
    assert (line.ended, line.recomputed_before) == ("running", 0)


def test_a_live_run_says_how_many_workers_it_has_and_why_places_are_unused():
    """In the controller's words, with their age if it has not spoken for a while. Nobody decides for an ended run."""
    text = "1 of 3 places used, because workers.max is 1"
    status = RunStatus(
        launch="l", time_s=BEGAN_S, state="Running", why="", next=text, least=1, most=1, nodes=(), workers=()
    )
    detail = run_detail(survey(segment(1, 0, *steps(0), world_size=1), driver="alive", live=status))
    assert (detail.next, detail.next_time_s) == (text, BEGAN_S)
    shown = detail_text(detail, BEGAN_S + 5)
    assert shown[shown.index("workers    1") + 1] == f"next       {text}"
    assert f"next       {text} (published 2 min ago)" in detail_text(detail, BEGAN_S + 120)
    ended = run_detail(survey(segment(1, 0, *steps(0), world_size=1), driver="ended"))
    assert not any(line.startswith(("next", "workers")) for line in detail_text(ended, BEGAN_S))


def test_events_have_their_times():
    """Their own times, or sums of durations on record. None at the start of a tail without a header."""
    seen = EvalRecord(step=2, samples=3, tokens=9, loss=1.0, seconds=3.0)
    detail = run_detail(survey(segment(1, 0, *steps(0, 1), commit(2), seen)))
    assert [event.time_s for event in detail.events] == [BEGAN_S + 100, BEGAN_S + 105]
    bare = SegmentEnds(generation=1, header=None, records=(seen,), committed_step=-1)
    assert [event.time_s for event in run_detail(survey(bare)).events] == [None]
    text = detail_text(run_detail(survey(bare)), BEGAN_S)
    assert text[-1] == f"{'':23}  step 2: held-out loss 1.0000"


def test_a_survey_of_nothing_has_a_line():
    """A run whose driver has just started."""
    line = run_line(survey(driver="alive"))
    assert (line.state, line.step, line.total_steps, line.last_event, line.active_time_s) == ("running", 0, 0, None, 0)
    assert run_table([line], ["x"], BEGAN_S)[1].split() == ["x", "running", "0/?", "-", "-", "-"]
    assert detail_text(run_detail(survey()), BEGAN_S)[:2] == ["run        runs/x", "state      stopped"]


def test_more_generations_than_are_shown_are_counted():
    """The text says how many are not shown."""
    text = detail_text(run_detail(survey(segment(40, 0), num_generations=40)), BEGAN_S)
    assert "and 39 generations before these" in text


def test_what_a_file_says_does_not_steer_the_terminal():
    """A message may contain control characters, and a header any time."""
    evil = EventRecord(message="\x1b[2Jgone\nnext", time_s=1e300)
    text = detail_text(run_detail(survey(segment(1, 0, evil))), BEGAN_S)
    assert text[-1] == r"5138-11-16 09:46:40 UTC  \x1b[2Jgone\nnext"
    assert printable("a\tb") == r"a\tb"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s ago"),
        (30, "30 s ago"),
        (600, "10 min ago"),
        (1e4, "2.8 h ago"),
        (1e6, "12 days ago"),
        (-9, "0 s ago"),
    ],
)
def test_an_age_has_the_unit_that_people_say(seconds, text):
    """A time in the future counts as now."""
    assert ago(BEGAN_S - seconds, BEGAN_S) == text
    assert ago(None, BEGAN_S) == "-"


@pytest.mark.parametrize("width", [80, 200])
def test_long_texts_of_a_run_are_wrapped(width):
    """Every word stays, at most `width` columns are used, and the command to resume stays on one line."""
    event = EventRecord(message="resize: " + "node-17 has notice, " * 12, time_s=BEGAN_S)
    seen = survey(segment(1, 0, event))
    detail = dataclasses.replace(run_detail(seen), resume="planner run " + "x" * 300)
    whole, narrow = detail_text(detail, BEGAN_S), detail_text(detail, BEGAN_S, width)
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(whole).split())
    assert [line.partition(" ")[0] for line in narrow if len(line) > width] == ["resume"]
    line = run_line(seen)
    assert len(run_table([line], ["x"], BEGAN_S)) == 2
    table = run_table([line], ["x"], BEGAN_S, width)
    assert len(table) > 2
    assert max(map(len, table)) <= width


def test_a_text_hangs_below_its_first_line():
    """If fewer than 40 columns are left, it starts on the next line. Without a width, it is one line."""
    text = "one two three four five six seven eight nine ten"
    assert hanging("name  ", text, None) == [f"name  {text}"]
    assert hanging("name  ", text, 46) == ["name  one two three four five six seven eight", "      nine ten"]
    assert hanging("name  ", text, 45) == ["name", "      one two three four five six seven eight", "      nine ten"]
    assert hanging("a line that is too long  ", "", 10) == ["a line that is too long"]
