"""No reader reads a text of the ledger: a renderer that answers "x" to every event changes texts alone."""

import contextlib
import dataclasses
import json

import pytest
from forging import forged
from made_up_runs import MadeUpRun, text_job
from pydantic import BaseModel
from verifiers import audited, run_script

from planner.events.saves import CommitInterval, LoadedFromMemory, MeasuredInterval
from planner.events.sizing import Waited
from planner.events.training import GenerationStopped
from planner.report.run_table import detail_json, run_detail
from planner.store.newest import newest_commit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.store.survey import survey
from planner.story.read import read_story
from planner.tracking.feed import Feed

MEASURED = MeasuredInterval(
    steps=3, work_s=3.0, save_s=0.5, write_s=0.1, between_losses_s=3600.0, losses=0, observed_s=9.0
)
# Fields that have texts for people, in the values that readers make, and digests of manifests, which cover the texts.
TEXTS = {"text", "reasons", "ended", "changed", "sha256", "parent_sha256"}


@pytest.fixture
def eventful(tmp_path):
    """Four generations: a resize after a notice, a change that was accepted, a wait, and an error."""
    made = MadeUpRun(tmp_path, job=text_job(tmp_path, checkpoint={"every": "auto"}))
    made.begin(4).steps(2).note("a notice", "notice").note("resize: 4 -> 2", "resizes").commit().steps(1)
    held = made.name
    made.begin(2, held, is_held=True).note(LoadedFromMemory(step=3, generation=1, workers=4, nodes=2)).steps(2)
    made.note(CommitInterval(steps=3, work_s=3.0, measured=MEASURED, steps_left=None)).measure().commit()
    made.change_job(text_job(tmp_path, checkpoint={"every": "auto"}, train={"clip_norm": 0.5}))
    made.begin(3, made.name, accepted=made.accepted, changed=("recipe: accepted by name",))
    made.note(Waited(waited_s=0.5)).note("1 node lost", "nodes_lost").steps(2).measure().commit()
    made.begin(1, made.name).steps(1).note(GenerationStopped(error="DataError", reason="the data changed"))
    return tmp_path / "run"


def silenced(url):
    """Every text that planner told about events and changes becomes "x"."""

    def silence(record):
        if record["kind"] == "event":
            record["message"] = "x"
        elif record["kind"] == "generation":
            record["changed"] = ["x"] * len(record["changed"])

    forged(url, silence)


def without_texts(value):
    """A reader's value as JSON values without its texts."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    elif dataclasses.is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: without_texts(each) for name, each in value.items() if name not in TEXTS}
    return [without_texts(each) for each in value] if isinstance(value, list | tuple) else value


def seen(url):
    """What the audit, the story, `show` and the trackers make of a run."""
    run = RunFolder(Storage(str(url)))
    story = read_story(run, "eventful", newest_commit(run).manifest)
    detail = json.loads(detail_json(run_detail(survey(str(url), 32))))
    return {
        "audit": without_texts(audited(url)),
        "story": without_texts(story),
        "show": without_texts(detail),
        "trackers": [without_texts(row) for row in Feed(run).last_rows()],
    }


def test_a_renderer_that_answers_x_changes_no_reader(eventful):
    """The causes of changes, the commit interval and the wait for room come from names and facts."""
    before = seen(eventful)
    assert before["audit"]["findings"] == []
    assert [change["cause"] for change in before["story"]["changes"]] == ["notice", "node lost", "workers leave"]
    assert before["show"]["interval"].startswith("auto: about every 3 s, 3 steps now")
    assert before["story"]["end"]["times"]["waiting_s"] == 0.5
    silenced(eventful)
    assert seen(eventful) == before
    with contextlib.chdir(eventful.parent):
        code, output = run_script(eventful)
    assert code == 0, output
