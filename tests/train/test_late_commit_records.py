"""A commit's record may stand behind those of later steps: what everything that reads a run makes of it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from events import EVENT_S
from test_checkpoint_safety import make_job

from planner.errors import StoreError
from planner.provenance.audit import audit
from planner.provenance.run_times import RunClock
from planner.report.run_table import run_detail
from planner.store.follow import WholeLedger
from planner.store.ledger import read_segment
from planner.store.newest import newest_commit
from planner.store.records import NO_HEAD, CommitRecord, StepRecord
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage
from planner.store.survey import survey
from planner.story.earlier import read_earlier
from planner.story.read import read_story
from planner.tracking.final_steps import FinalSteps
from planner.train import commit_files, lifecycle, loop, step_records
from planner.train import commits as commits_module
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

pytestmark = pytest.mark.usefixtures("process_group")
SCRIPT = Path(__file__).parents[2] / "docs" / "verify_run.py"
TOTAL, EVERY = 8, 3


class Killed(RuntimeError):
    """Ends a generation as a lost worker does."""


class Driven:
    """A run whose commits become durable at steps of the test's choice."""

    def __init__(self, folder, monkeypatch):
        (folder / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
        settings = {"eval": {"samples": 3, "every": 3}, "checkpoint": {"every": EVERY}}
        self.job = make_job(folder / "corpus.txt", steps=TOTAL, **settings)
        self.run = RunFolder(Storage(str(folder / "run")))
        self._made, self.reports = [], []
        monkeypatch.setattr(lifecycle, "Commits", self._commits)

    def _commits(self, **named):
        self._made.append(commits_module.Commits(**named))
        return self._made[-1]

    def train(self, *, slow=True, kill_at=None, stop_at=None):
        """With `slow`, each commit lands two steps after its own: the loop is held until the thread is done."""

        def should_stop(step):
            flight = self._made[-1]._flight
            for work in (flight.writing, flight.sealing) if flight and slow else ():
                assert work is None or work._ended.wait(EVENT_S)
            if step == kill_at:
                raise Killed
            return step == stop_at

        hooks = Hooks(should_stop=should_stop, report=self.reports.append)
        return train(Launch(job=self.job, url=self.run.storage.url), cpu_device, hooks)

    def segment(self, generation, previous=NO_HEAD):
        return [link.record for link in read_segment(self.run.storage, generation, previous)]


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """Killed in its sixth step: the commit of step 3 is on record behind steps 4 and 5, which no commit has."""
    driven = Driven(tmp_path, monkeypatch)
    with pytest.raises(Killed):
        driven.train(kill_at=6)
    return driven


def steps_and_commits(records):
    kinds = [("commit", r.step) if isinstance(r, CommitRecord) else ("step", r.step + 1) for r in records
             if isinstance(r, StepRecord | CommitRecord)]  # fmt: skip
    return [number if kind == "step" else f"commit {number}" for kind, number in kinds]


def rows_of(run, *, is_over):
    steps = FinalSteps()
    rows = [row.step for number, record in WholeLedger(run).new_records() for row in steps.add(number, record)]
    return rows + [row.step for row in steps.flush()] if is_over else rows


def test_the_record_stands_behind_later_steps(killed):
    """So the tests below show something. The manifest names the chain's head at its own step."""
    records = killed.segment(1)
    assert steps_and_commits(records) == [1, 2, 3, 4, 5, "commit 3"]
    links = list(read_segment(killed.run.storage, 1, NO_HEAD))
    at = next(
        number for number, link in enumerate(links) if isinstance(link.record, StepRecord) and link.record.step == 2
    )
    manifest = killed.run.manifest(commit_name(3, 1))
    assert manifest.ledger_head in {link.head for link in links[at : at + 3]}
    assert (manifest.step, manifest.cursor) == (3, 15)


def test_a_stop_measures_the_commit_in_flight_and_its_own(tmp_path, monkeypatch):
    """On a clock of the test's own. That is the time for which a resize keeps training still."""
    driven, clock_s, land = Driven(tmp_path, monkeypatch), [0.0], commits_module.Commits._land

    def landed(self, flight):
        clock_s[0] += {3: 8.0, 4: 5.0}[flight.step]
        return land(self, flight)

    monkeypatch.setattr(commits_module.Commits, "_land", landed)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    end = driven.train(slow=False, stop_at=4)
    assert (end.step, end.durable_after_s) == (4, 13.0)


def test_a_killed_run_stands_at_its_durable_step(killed):
    """Audit, survey, tracker and story: three steps count, two are uncommitted and were lost without notice."""
    run = killed.run
    assert newest_commit(run).manifest.step == 3
    result = audit(run)
    assert result.clean, result.findings
    assert (result.steps, result.uncommitted, result.recomputed) == (3, 2, 0)
    found = survey(run.storage.url)
    assert (found.newest.step, found.problem) == (3, "")
    detail = run_detail(found)
    assert (detail.summary.step, detail.summary.committed_step, detail.num_commits) == (5, 3, 1)
    assert detail.generations[-1].ended == "without notice"
    assert rows_of(run, is_over=False) == [0, 1, 2, 3]
    earlier = read_earlier(run, before=2, now_s=0.0)
    assert (earlier.losses, len(earlier.save_times), len(earlier.write_times)) == (1, 1, 1)
    assert earlier.save_times[0] <= earlier.write_times[0]


@pytest.mark.process
def test_a_run_that_resumes_from_such_a_commit_is_whole(killed):
    """The next generation's chain leaves the segment in its middle. The steps behind it were done again."""
    killed.reports.clear()
    assert killed.train().finished
    assert {report["num_again"] for report in killed.reports} == {2}
    run = killed.run
    second = killed.segment(2, run.manifest(commit_name(3, 1)).ledger_head)
    assert steps_and_commits(second) == [4, 5, 6, 7, 8, "commit 6", "commit 8"]
    result = audit(run)
    assert result.clean, result.findings
    assert (result.steps, result.samples, result.recomputed, result.uncommitted) == (TOTAL, TOTAL * 5, 2, 0)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), run.storage.url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    rows = rows_of(run, is_over=True)
    assert [row for row in rows if row] == list(range(1, TOTAL + 1))
    story = read_story(run, "test", newest_commit(run).manifest)
    assert (story.end.step, story.undone_steps, story.commits.number) == (TOTAL, 2, 3)
    clock, lost_s = RunClock(), 0.0
    for number, record in WholeLedger(run).new_records():
        clock.add(record)
        if number == 1 and isinstance(record, StepRecord) and record.step >= 3:
            lost_s += record.seconds
    assert clock.times.lost_s == pytest.approx(lost_s)
    detail = run_detail(survey(run.storage.url, 8))
    assert [line.ended for line in detail.generations] == ["without notice", "finished"]
    shown, audited = detail.generations, result.phases
    assert [line.recomputed_before for line in shown] == [phase.recomputed_before for phase in audited] == [0, 2]
    assert read_earlier(run, before=3, now_s=0.0).losses == 1


def test_a_report_has_what_is_held_and_durable_when_its_step_is_done(tmp_path, monkeypatch):
    """Not what was so a step earlier: the controller tells people which step is still being written."""
    monkeypatch.setattr(step_records, "_REPORT_INTERVAL_S", 0.0)
    driven = Driven(tmp_path, monkeypatch)
    assert driven.train().finished
    known = [(report["step"] + 1, report["held_step"], report["durable_step"]) for report in driven.reports]
    assert known == [(1, 0, 0), (2, 0, 0), (3, 3, 0), (4, 3, 0), (5, 3, 3), (6, 6, 3), (7, 6, 3), (8, 6, 6)]


def test_an_undisturbed_run_with_late_records_lost_nothing(tmp_path, monkeypatch):
    """The last commit covers all steps. The losses are the same as those of commits that land at once."""
    driven = Driven(tmp_path, monkeypatch)
    assert driven.train().finished
    assert steps_and_commits(driven.segment(1)) == [1, 2, 3, 4, 5, "commit 3", 6, 7, 8, "commit 6", "commit 8"]
    assert read_earlier(driven.run, before=2, now_s=0.0).losses == 0
    assert audit(driven.run).clean
    assert audit(driven.run).held_out[-1][0] == TOTAL


def test_a_run_killed_before_its_record_resumes_from_the_manifest(tmp_path, monkeypatch):
    """Durable, and not on record: the record would have been written one step later."""
    driven = Driven(tmp_path, monkeypatch)
    with pytest.raises(Killed):
        driven.train(kill_at=5)
    assert driven.run.commits() == [commit_name(3, 1)]
    assert steps_and_commits(driven.segment(1)) == [1, 2, 3, 4]
    assert driven.train().finished
    result = audit(driven.run)
    assert result.clean, result.findings
    assert (result.steps, result.recomputed) == (TOTAL, 1)
    assert [row for row in rows_of(driven.run, is_over=True) if row] == list(range(1, TOTAL + 1))


def test_a_full_store_in_the_background_stops_the_run_with_the_last_commit_named(tmp_path, monkeypatch):
    """The error comes some steps later, and names the step that could not be committed."""
    driven = Driven(tmp_path, monkeypatch)
    write, count = commit_files.write_shards, []

    def failing(*arguments):
        count.append(None)
        if len(count) == 2:
            raise StoreError("the store is gone, says the test")
        return write(*arguments)

    monkeypatch.setattr(commit_files, "write_shards", failing)
    with pytest.raises(StoreError, match="the store is gone, says the test"):
        driven.train()
    assert driven.run.commits() == [commit_name(3, 1)]
    assert driven.segment(1)[-1].message == "stopped: the store is gone, says the test"
    assert driven.train().finished
    assert audit(driven.run).clean
