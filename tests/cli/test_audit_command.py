"""`planner audit` on a real run of one worker: what it prints, and with which code it ends."""

import dataclasses
import json
import re
import shutil
import sys
from dataclasses import replace

import pytest

from planner.provenance.audit import Audit, audit
from planner.store.lease import DriverLease
from planner.store.lease_record import lease_name, this_driver
from planner.store.records import seal
from planner.store.storage import Storage

CLEAN = """\
generation  workers  split  rounds  steps   recomputed before
         1        1  1 x 6       2  [0, 2)                  0
         2        1  1 x 6       2  [2, 4)                  0

steps         4 (finished)
samples       24
lost          0
repeated      0
recomputed    0 steps, done again after a loss or a stop, and counted once
global batch  6 (constant)
held-out loss X at step 0, Y at step 4
audit: clean. Every committed step used exactly its samples; the chain is intact
"""


@pytest.fixture
def run(recorded, tmp_path):
    """A copy that a test may damage. The data stays at its path."""
    return shutil.copytree(recorded.run, tmp_path / "[red]run[-red] :skull:")


def alter(run, generation, old, new):
    """Change one place in a ledger."""
    segment = run / "ledger" / f"{generation:06d}.jsonl"
    text = segment.read_text()
    assert old in text
    segment.write_text(text.replace(old, new, 1))


def test_a_clean_run_is_told_so(cli, run):
    """Exact text of phases, counts and verdict, exit code 0, nothing on stderr, and no file is written."""
    before = sorted(run.rglob("*"))
    answer = cli("audit", run)
    # A loss depends on the machine's arithmetic.
    out = re.sub(r"loss \d\.\d{4} at step 0, \d\.\d{4} at", "loss X at step 0, Y at", answer.out)
    assert (answer.code, out, answer.err) == (0, CLEAN, "")
    assert sorted(run.rglob("*")) == before


def test_the_json_has_every_field_of_the_audit(cli, run):
    """The keys are a public interface. The values equal those in the text."""
    answer = cli("audit", run, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert set(found) == {"clean", *(field.name for field in dataclasses.fields(Audit))}
    assert found["clean"] is True
    assert (found["steps"], found["samples"], found["global_batches"], found["findings"]) == (4, 24, [6], [])
    assert [(phase["first_step"], phase["end_step"]) for phase in found["phases"]] == [(0, 2), (2, 4)]
    assert [phase["shares"] for phase in found["phases"]] == [[[1, 6]], [[1, 6]]]
    assert [step for step, _ in found["held_out"]] == [0, 2, 4]


def test_an_altered_ledger_line_is_printed_and_is_exit_code_1(cli, run):
    """The finding names the line, the verdict warns, and a script sees the exit code."""
    alter(run, 2, '"samples":6', '"samples":5')
    answer = cli("audit", run)
    assert (answer.code, answer.err) == (1, "")
    wrong = [line for line in answer.out.splitlines() if line.startswith("WRONG")]
    assert wrong == ["WRONG         ledger/000002.jsonl:3: the chain breaks here. A line was altered, removed or added"]
    assert answer.out.endswith("audit: NOT CLEAN. Do not trust this run before you know why\n")
    assert "clean. Every" not in answer.out


def test_an_altered_ledger_line_is_in_the_json(cli, run):
    """One JSON document with `clean` false, and exit code 1."""
    alter(run, 1, '"loss":', '"loss" :')
    answer = cli("audit", run, "--json")
    assert (answer.code, answer.err) == (1, "")
    found = json.loads(answer.out)
    assert found["clean"] is False
    assert any("ledger/000001.jsonl" in finding for finding in found["findings"])


def test_data_that_changed_is_named_as_it_is_written(cli, run, recorded):
    """The finding has the path unchanged, with brackets and colons."""
    text = recorded.text.read_text()
    try:
        recorded.text.write_text(text.replace("fox", "dog", 1))
        answer = cli("audit", run)
    finally:
        recorded.text.write_text(text)
    assert answer.code == 1
    assert f"the data at {recorded.text} is not what it was trained on" in answer.out


def test_a_run_without_its_manifests_cannot_be_audited(cli, run):
    """There is no verdict, but one line on stderr with the unchanged folder name."""
    shutil.rmtree(run / "manifests")
    answer = cli("audit", run)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"planner: {run}: the ledger records 2 commits, and no manifest can be read\n"


def test_a_long_audit_draws_a_bar_on_a_terminal(cli, run, monkeypatch):
    """On stderr, because scripts read stdout. Without a terminal there is no bar."""
    monkeypatch.setattr("planner.cli.activity._SHOWN_AFTER_S", 0.0)
    assert cli("audit", run).err == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    answer = cli("audit", run, "--json")
    assert "steps audited" in answer.err
    assert json.loads(answer.out)["clean"]


def test_steps_without_a_commit_are_no_loss_while_the_run_goes_on(cli, run, monkeypatch):
    """Another process may be running it. The lease shows whether it does."""
    monkeypatch.setattr(
        "planner.runner.audit_run.audit_run", lambda *given, **more: replace(audit(*given, **more), uncommitted=9)
    )
    assert "uncommitted   9 steps after the newest commit\n" in cli("audit", run).out
    with DriverLease(Storage(str(run)), "launch", print):
        assert "9 steps after the newest commit (the run is still going)\n" in cli("audit", run).out
    elsewhere = this_driver("other", beat_s=5.0).model_copy(update={"place": "another boot"})
    Storage(str(run)).write(lease_name(9), seal(elsewhere))
    assert "commit (a driver on another machine may still run it)\n" in cli("audit", run).out
