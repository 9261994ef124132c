"""Ledgers of earlier formats are still read: by the audit, the story and show."""

import contextlib

import pytest
from earlier import FORMATS, unpack
from forging import forged
from made_up_runs import BEGAN_S
from verifiers import audited, run_script

from planner.report.run_table import detail_text, run_detail
from planner.store.newest import newest_commit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.store.survey import survey
from planner.story.read import read_story


@pytest.fixture(params=FORMATS)
def earlier(request, tmp_path):
    """A run of an earlier version."""
    return unpack(request.param, tmp_path)


def story_of(url):
    run = RunFolder(Storage(str(url)))
    return read_story(run, "earlier", newest_commit(run).manifest)


def script(url):
    with contextlib.chdir(url.parent):
        return run_script(url)


def test_a_run_of_an_earlier_version_is_clean(earlier):
    """Its header accepts another seed in a text, which is all that it has."""
    found = audited(earlier)
    assert found.clean, found.findings
    assert found.steps == 4
    code, output = script(earlier)
    assert code == 0, output


def test_a_change_that_no_earlier_text_accepts_is_found(earlier):
    """A text about another setting accepts nothing."""

    def refuse(record):
        if record["kind"] == "generation":
            record["changed"] = [text for text in record["changed"] if "accepted" not in text]
            record["accepted"] = []

    forged(earlier, refuse)
    assert audited(earlier).findings == ("generation 2: another seed than before, and nobody accepted it",)
    code, output = script(earlier)
    assert (code, "another 'seed' than before, and nobody accepted it" in output) == (1, True)


def test_readers_take_headers_and_numbers_of_an_earlier_run(earlier):
    """Messages are shown as they are."""
    story = story_of(earlier)
    assert [phase.workers for phase in story.phases] == [1, 1]
    assert [(change.cause, change.reasons) for change in story.changes] == [
        ("restart", ("seed: accepted by name", "train.seed: 0 -> 1"))
    ]
    assert {event.text for event in story.events} == {"warmup 50% = 3 steps (9 examples)"}
    text = "\n".join(detail_text(run_detail(survey(str(earlier), 32)), BEGAN_S))
    assert "warmup 50% = 3 steps (9 examples)" in text
    assert "seed: accepted by name; train.seed: 0 -> 1" in text
