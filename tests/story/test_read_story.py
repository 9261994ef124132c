"""A story from a run's folder."""

import pytest
from made_runs import eventful, header, long, story_of, write_run

from planner.errors import NewerFormat, StoreError
from planner.store.ledger import segment_name
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.read import read_story


def test_a_folder_gives_the_story_of_its_records(tmp_path):
    """Of all generations, oldest first."""
    run = write_run(tmp_path / "run", eventful())
    read = read_story(run, "made", None)
    made = story_of(eventful())
    assert (read.phases, read.changes, read.loss) == (made.phases, made.changes, made.loss)
    assert (read.end.times, read.end.step) == (made.end.times, made.end.step)


def test_a_torn_line_ends_nothing(tmp_path):
    """A crash leaves one, and lines after an altered one are read, because the audit judges and this reads."""
    run = write_run(tmp_path / "run", long(40, num_generations=1))
    file = tmp_path / "run" / segment_name(1)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:10], "torn\n", *lines[11:], lines[-1][:50]]))
    assert len(read_story(run, "x", None).loss.x) == 39


def test_claims_name_hosts(tmp_path):
    """Torn claims are left out."""
    run = write_run(tmp_path / "run", [header(1, 4, 0)])
    run.claim_generation({"host": "node-7"})
    (tmp_path / "run" / "generations" / "000003.json").write_text("{")
    assert read_story(run, "x", None).hosts == ("node-7",)


def test_a_newer_format_is_refused(tmp_path):
    """Its records may mean something else."""
    run = write_run(tmp_path / "run", [header(1, 4, 0, format=999)])
    with pytest.raises(NewerFormat):
        read_story(run, "x", None)


def test_a_folder_without_a_run_has_no_story(tmp_path):
    """One sentence."""
    with pytest.raises(StoreError, match="no run here"):
        read_story(RunFolder(Storage(str(tmp_path / "none"))), "x", None)
