"""Runs that a crash, a resize or a long life leaves in an odd state, and that nobody altered: both verifiers agree."""

from pathlib import Path

import pytest
from made_up_runs import MadeUpRun
from verifiers import audited, by_script, load_script

from planner.provenance.audit import audit
from planner.store import ledger
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def torn_manifest(made):
    """A driver died while it wrote a manifest, and the run went on from the commit before."""
    before = made.steps(2).commit().name
    made.steps(2).commit(is_recorded=False)
    file = Path(made.run.storage.url) / "manifests" / f"{made.name}.json"
    file.write_bytes(file.read_bytes()[:100])
    made.begin(1, before).steps(3).commit()


def unrecorded_manifest(made):
    """A driver died between a manifest and its record, and the run went on from it."""
    made.steps(2).commit(is_recorded=False)
    made.begin(1, made.name).steps(1).commit()


def torn_header(made):
    """A driver died while it wrote its header. Its ledger has no line."""
    before = made.steps(2).commit().name
    made.begin(1, before)
    file = Path(made.run.storage.url) / "ledger" / f"{made.generation:06d}.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    made.begin(3, before).steps(1).commit()


def half_a_header(made):
    """A driver died while it wrote its header, and half of the line came to the disk."""
    before = made.steps(2).commit().name
    made.begin(1, before)
    file = Path(made.run.storage.url) / "ledger" / f"{made.generation:06d}.jsonl"
    file.write_bytes(file.read_bytes()[:100])
    made.begin(3, before).steps(1).commit()


def no_header(made):
    """A driver died after its claim."""
    before = made.steps(2).commit().name
    made.run.claim_generation({"launch": "a", "parent": before})
    made.begin(3, before).steps(1).commit()


def torn_record(made):
    """A driver died while it wrote a record."""
    before = made.steps(2).commit().name
    made.steps(2)
    file = Path(made.run.storage.url) / "ledger" / f"{made.generation:06d}.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    made.begin(1, before).steps(3).commit()


def late_record(made):
    """A step became durable while later ones were trained."""
    name = made.steps(2).name
    made.steps(1).commit(at=name).steps(1).commit()


def no_step(made):
    """A generation ended before its first step, and the next began where it had."""
    before = made.steps(2).commit().name
    made.begin(1, before).begin(2, before).steps(1).commit()


def durable_after_all(made):
    """A held step, from which another generation went on, became durable."""
    held = made.steps(2).name
    made.begin(1, held, is_held=True).steps(1).commit()
    made.begin(2, held, is_held=True).steps(2).commit()


HISTORIES = [
    torn_manifest,
    unrecorded_manifest,
    torn_header,
    half_a_header,
    no_header,
    torn_record,
    late_record,
    no_step,
    durable_after_all,
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_sound_history_is_clean(tmp_path, history):
    made = MadeUpRun(tmp_path).begin(2).steps(1)
    history(made)
    run = Path(made.run.storage.url)
    assert audited(run).findings == ()
    assert by_script(run, run).found == ()


@pytest.mark.parametrize("after_steps", [1, 5])
def test_a_run_may_go_on_during_its_audit(tmp_path, after_steps):
    """A commit, and a resume from memory with another commit, that land while the audit derives samples."""
    made = MadeUpRun(tmp_path).begin(2).steps(10).commit().steps(2)

    def go_on(done, _of):
        if done == after_steps:
            made.steps(1).commit().steps(1)
            made.begin(3, made.name, is_held=True).steps(1).commit()

    assert audit(RunFolder(Storage(made.run.storage.url)), progress=go_on).findings == ()
    assert made.generation == 2
    assert audited(made.run.storage.url).findings == ()


def test_a_run_may_go_on_while_the_script_reads_it(tmp_path):
    """Two generations begin after it has listed the commits: at a commit that it has not seen, and in memory."""
    made = MadeUpRun(tmp_path).begin(2).steps(10).commit()
    script = load_script()
    read_commits, findings = script.read_commits, []

    def read_and_go_on(*arguments):
        found = read_commits(*arguments)
        made.steps(1).commit()
        made.begin(3, made.name).steps(1)
        made.begin(1, made.name, is_held=True).steps(1).commit()
        return found

    script.read_commits = read_and_go_on
    script.check(Path(made.run.storage.url), ("", ""), findings, [], listed=False)
    assert (made.generation, findings) == (3, [])


def test_a_ledger_may_be_larger_than_what_is_read_at_once(tmp_path, monkeypatch):
    """A month of short steps has gigabytes. Here a piece has fewer bytes than a line."""
    made = MadeUpRun(tmp_path).begin(2).steps(3).commit().steps(1)
    whole = list(ledger.segment_lines(made.run.storage, ledger.segment_name(1)))
    assert len(whole) == 6
    monkeypatch.setattr(ledger, "_PIECE_BYTES", 7)
    assert list(ledger.segment_lines(made.run.storage, ledger.segment_name(1))) == whole
    assert ledger.recorded_commits(made.run.storage, 1).keys() == {*made.run.commits()}
    assert audited(made.run.storage.url).findings == ()
