"""A run that went on from memory: what show, the terminal, trackers, the pace, metrics and the story make of it."""

import dataclasses
from types import SimpleNamespace

import pytest
from made_up_runs import BEGAN_S, MadeUpRun

from planner.cli.run_watcher import WatchedRecords
from planner.dispatch.run_metrics import RunMetrics
from planner.events.saves import LoadedFromMemory
from planner.provenance.audit import audit
from planner.report.audits import verdict
from planner.report.run_table import detail_text, run_detail
from planner.report.run_view import durable_text, news_text
from planner.store.follow import WholeLedger
from planner.store.newest import newest_commit
from planner.store.run_folder import commit_name
from planner.store.survey import is_run, survey
from planner.story.earlier import read_earlier
from planner.story.read import read_story
from planner.story.run_story import StoryFold, story_of
from planner.tracking.feed import Feed
from planner.wording.event_text import text_of

LOADED = LoadedFromMemory(step=5, generation=1, workers=4, nodes=3)
TOLD = text_of(LOADED)


@pytest.fixture
def made(tmp_path):
    """4 workers commit step 3 and hand step 5 over in memory. 2 workers go on and die at 9, after a copy of step 8."""
    made = MadeUpRun(tmp_path, steps=12).begin(4).steps(3).commit().steps(2)
    return made.begin(2, made.name, is_held=True).note(LOADED).steps(4)


@pytest.fixture
def recovered(made):
    """3 workers go on from the copy of step 8."""
    return made.begin(3, commit_name(8, 2), is_held=True).steps(1)


@pytest.fixture
def fallen_back(made):
    """All memory was lost: 1 worker goes on from the commit."""
    return made.begin(1, commit_name(3, 1)).steps(1)


def records(made):
    return [record for _, record in WholeLedger(made.run).new_records()]


def numbers(rows):
    return [row.step for row in rows]


# -- show


def test_show_says_where_a_generation_came_from(recovered):
    """In the table of generations, in the events and in JSON."""
    detail = run_detail(survey(recovered.run.storage.url, 32))
    text = "\n".join(detail_text(detail, BEGAN_S))
    assert "generation 1 begins: 4 workers" in text
    assert "generation 2 resumed from memory at step 5: 2 workers" in text
    assert "generation 3 resumed from memory at step 8: 3 workers" in text
    assert TOLD in text
    assert [each.parent_is_held for each in detail.generations] == [False, True, True]
    assert [each.parent for each in detail.generations] == ["", commit_name(5, 1), commit_name(8, 2)]
    ends = [(each.end_step, each.ended, each.recomputed_before) for each in detail.generations]
    assert ends == [(5, "in memory", 0), (9, "without notice", 0), (9, "without notice", 1)]
    assert (detail.summary.step, detail.summary.committed_step) == (9, 3)


def test_show_names_the_step_that_is_in_memory_now(recovered):
    """Beside the durable one, while it is newer."""
    found = survey(recovered.run.storage.url, 32)
    for held, line in ((8, "held       step 8, in memory"), (3, ""), (0, "")):
        detail = run_detail(dataclasses.replace(found, live=SimpleNamespace(held_step=held, next="", time_s=BEGAN_S)))
        lines = [line for line in detail_text(detail, BEGAN_S) if line.startswith("held ")]
        assert lines == ([line] if line else [])
        assert detail.summary.held_step == max(held, 3)
    assert run_detail(found).summary.held_step == 3


def test_show_counts_what_was_computed_again_as_an_audit_does(fallen_back):
    """Nobody went on from the second generation in the end, so its steps and those before it were lost."""
    fallen_back.steps(6).commit()
    detail = run_detail(survey(fallen_back.run.storage.url, 32))
    assert "generation 3 resumed from the commit of step 3: 1 worker" in "\n".join(detail_text(detail, BEGAN_S))
    assert [each.recomputed_before for each in detail.generations] == [0, 0, 6]
    result = audit(fallen_back.run)
    assert result.clean, result.findings
    assert result.recomputed == 6


def test_a_generation_without_a_commit_counts_if_another_went_on_from_it(tmp_path):
    """It is in the lineage, and it computed the lost step again."""
    made = MadeUpRun(tmp_path).begin(4).steps(3).commit().steps(3)
    made.begin(2, commit_name(5, 1), is_held=True).steps(2)
    made.begin(3, made.name, is_held=True).steps(1).commit()
    detail = run_detail(survey(made.run.storage.url, 32))
    assert [each.recomputed_before for each in detail.generations] == [0, 1, 0]
    assert [phase.recomputed_before for phase in audit(made.run).phases] == [0, 1, 0]


def test_a_table_of_generations_names_the_origin(recovered):
    """Start, memory or commit."""
    recovered.commit().begin(1, recovered.name).steps(1)
    detail = run_detail(survey(recovered.run.storage.url, 32))
    lines = detail_text(detail, BEGAN_S)
    at = next(number for number, line in enumerate(lines) if line.startswith("generation  "))
    found = [line.split(")  ")[1].split()[0] for line in lines[at + 1 : at + 5]]
    assert found == ["start", "memory", "memory", "commit"]


def test_a_folder_with_only_held_steps_is_a_part_of_a_run(made):
    """As with any other of a run's files."""
    for name in ("run.json", "generations", "ledger", "manifests"):
        made.run.storage.delete(name)
    assert is_run(made.run.storage)


# -- the terminal


def test_a_held_step_is_not_durable_in_the_terminal(made):
    """What is durable stays durable, and the held step is shown beside it."""
    fold = StoryFold()
    lines = [news_text(news) for news in map(fold.add, records(made)) if news and news.is_listed]
    assert (fold.story.committed_step, fold.story.held_step, fold.story.step) == (3, 5, 9)
    assert durable_text(fold.story) == "durable 3, held 5"
    assert lines[1].startswith("generation 2 resumed from memory at step 5: 2 workers")
    assert lines[2] == TOLD
    made.commit()
    assert durable_text(story_of(records(made))) == "durable 9"


def test_a_commit_that_was_undone_is_not_durable(made):
    """A generation began below it."""
    made.commit().begin(3, commit_name(5, 1), is_held=True)
    assert story_of(records(made)).committed_step == 5


def test_a_held_step_that_was_lost_is_not_shown(fallen_back):
    """Its memory is gone, also when the run has come as far again."""
    story = story_of(records(fallen_back.steps(3)))
    assert (durable_text(story), story.step) == ("durable 3", 7)


def test_the_board_keeps_the_losses_of_steps_that_count(recovered):
    """Those after the held step were undone."""
    history = WatchedRecords()
    history.add(records(recovered))
    assert [step for step, _ in history.losses] == list(range(1, 10))


# -- trackers


def test_a_held_step_makes_nothing_final(made):
    """Memory may be lost. Only a durable commit makes it final."""
    feed = Feed(made.run)
    assert numbers(feed.new_rows()) == [1, 2, 3]
    made.begin(3, commit_name(8, 2), is_held=True).steps(2)
    assert numbers(feed.new_rows()) == []
    made.commit()
    assert numbers(feed.new_rows()) == [4, 5, 6, 7, 8, 9]
    assert numbers(feed.last_rows()) == [10]


def test_a_commit_of_the_held_step_itself_makes_it_final(made):
    """A generation that began in memory commits at once."""
    feed = Feed(made.run)
    assert numbers(feed.new_rows()) == [1, 2, 3]
    made.begin(3, commit_name(8, 2), is_held=True).commit().steps(1)
    assert numbers(feed.new_rows()) == [4, 5, 6, 7, 8]


def test_if_memory_is_lost_the_second_attempt_is_final(fallen_back):
    """Nothing of the first one has reached a tracker."""
    feed = Feed(fallen_back.run)
    assert numbers(feed.new_rows()) == [1, 2, 3]
    fallen_back.steps(7).commit()
    rows = [*feed.last_rows()]
    assert numbers(rows) == list(range(4, 12))
    assert {row.values["batch/generation"] for row in rows} == {3}


# -- the pace of commits


def test_a_hand_over_in_memory_is_no_loss(tmp_path):
    """Its steps are in the next generation's memory."""
    made = MadeUpRun(tmp_path).begin(4).steps(3).commit().steps(2)
    assert read_earlier(made.run, before=2, now_s=BEGAN_S).losses == 1
    made.begin(2, made.name, is_held=True).steps(4)
    assert read_earlier(made.run, before=2, now_s=BEGAN_S).losses == 0
    made.begin(2, made.name, is_held=True)
    assert read_earlier(made.run, before=3, now_s=BEGAN_S).losses == 0


def test_a_hand_over_before_any_commit_is_no_loss(tmp_path):
    """The generation has no commit of its own."""
    made = MadeUpRun(tmp_path).begin(4).steps(2)
    made.begin(2, made.name, is_held=True)
    assert read_earlier(made.run, before=2, now_s=BEGAN_S).losses == 0


def test_a_death_is_a_loss_also_where_memory_saved_most_steps(recovered):
    """One step was lost. How often workers die decides how often to commit."""
    assert read_earlier(recovered.run, before=3, now_s=BEGAN_S).losses == 1


def test_a_commit_after_the_held_step_counts(tmp_path):
    """The workers stopped durably, though a generation had begun from an earlier copy."""
    made = MadeUpRun(tmp_path).begin(4).steps(3)
    name = made.name
    made.steps(2).commit().begin(2, name, is_held=True)
    assert read_earlier(made.run, before=2, now_s=BEGAN_S).losses == 0


# -- metrics, story, verdict


def test_metrics_do_not_call_a_held_step_committed(recovered):
    """The step that was lost is counted."""
    metrics = RunMetrics("a")
    for record in records(recovered):
        metrics.add(record)
    found = metrics.values(is_training=True)
    assert found["planner_committed_step", ""] == 3
    assert (found["planner_step", ""], found["planner_generation", ""]) == (9, 3)
    assert found["planner_steps_redone_total", ""] == 1
    assert found["planner_time_seconds", "lost"] == 1.0


def test_metrics_fall_back_with_the_run(fallen_back):
    """The commit is where it began."""
    metrics = RunMetrics("a")
    for record in records(fallen_back):
        metrics.add(record)
    found = metrics.values(is_training=True)
    assert (found["planner_committed_step", ""], found["planner_time_seconds", "lost"]) == (3, 6.0)


def test_the_story_knows_what_came_from_memory(recovered):
    """The reason on record is shown, and steps that are not durable stay at risk."""
    recovered.commit()
    story = read_story(recovered.run, "test", newest_commit(recovered.run).manifest)
    assert [change.from_memory for change in story.changes] == [True, True]
    assert [change.again for change in story.changes] == [0, 1]
    assert story.changes[0].reasons == (TOLD,)
    assert (story.end.step, story.undone_steps) == (9, 1)
    assert story.commits.at_risk.y == (3, 6)
    assert story.commits.unrecorded == ()


def test_the_verdict_names_the_steps(recovered):
    """Where generations resumed from memory. Without any, there is no such line."""
    assert not any("from memory" in line for line in verdict(audit(recovered.run)))
    result = audit(recovered.commit().run)
    assert result.clean, result.findings
    assert "from memory   2 generations, at steps 5, 8" in verdict(result)
    one = dataclasses.replace(result, phases=result.phases[:2])
    assert "from memory   1 generation, at step 5" in verdict(one)
    many = dataclasses.replace(result, phases=result.phases[1:2] * 12)
    assert f"from memory   12 generations, at steps ..., {', '.join(['5'] * 10)}" in verdict(many)
