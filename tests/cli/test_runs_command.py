"""`planner runs` and `planner show` on real runs of one worker, intact and damaged."""

import dataclasses
import json
import re
import shlex
import shutil
import sys

import pytest

from planner.files import read_job
from planner.report.run_table import RunDetail, RunLine
from planner.store.code_failure import CodeFailure, keep_failure
from planner.store.lease import DriverLease
from planner.store.lease_record import lease_name, this_driver
from planner.store.records import seal
from planner.store.storage import Storage


@pytest.fixture
def runs(recorded, tmp_path):
    """A folder with copies of a finished run and with other files."""
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    (tmp_path / "runs" / "notes.txt").write_text("x")
    for name in ("whole", "longer", "[red]torn :skull:"):
        shutil.copytree(recorded.run, tmp_path / "runs" / name)
    torn = tmp_path / "runs" / "[red]torn :skull:"
    (torn / "run.json").write_text("{")
    return torn.parent


def say_more_steps(run):
    """Change the newest generation's header to 9 steps."""
    segment = run / "ledger" / "000002.jsonl"
    segment.write_text(segment.read_text().replace('"total_steps":4', '"total_steps":9', 1))


def states(cli, *arguments):
    return {line["run"].rpartition("/")[2]: line["state"] for line in json.loads(cli("runs", *arguments, "--json").out)}


def test_runs_are_listed_with_their_state(cli, runs):
    """One line each. A torn run has a reason, other folders are left out, and the exit code is 0."""
    say_more_steps(runs / "longer")
    before = sorted(runs.rglob("*"))
    answer = cli("runs")
    assert (answer.code, answer.err) == (0, "")
    lines = [re.sub(r"[\d.]+ (s|min) ago", "N s ago", line) for line in answer.out.splitlines()]
    assert [line.split()[:2] for line in lines[:1]] == [["run", "state"]]
    # The name of a run may hold what a terminal library would like to interpret.
    assert {line.split("  ")[0]: line for line in lines[1:]}.keys() == {"[red]torn :skull:", "longer", "whole"}
    whole = next(line for line in lines if line.startswith("whole"))
    assert re.sub(" +", " ", re.sub(r"loss [\d.]+", "loss X", whole)) == (
        "whole finished 4/4 1 4, N s ago N s ago: step 4: held-out loss X"
    )
    assert re.search(r"longer +stopped +4/9 ", answer.out)
    assert re.search(r"skull: +broken .*run\.json: torn", answer.out)
    assert sorted(runs.rglob("*")) == before


def test_the_run_that_was_active_last_comes_first(cli, runs):
    """By the times on record, not by name."""
    segment = runs / "longer" / "ledger" / "000002.jsonl"
    segment.write_text(re.sub(r'"time_s":[\d.]+', '"time_s":4000000000.5', segment.read_text(), count=1))
    assert next(iter(states(cli))) == "longer"


def test_an_error_of_the_users_code_is_shown_with_its_traceback(cli, runs):
    """Type, file and line, and the command that prints the rest. Once a generation has begun, only the command does."""
    place = Storage(str(runs / "whole"))
    answer = cli("show", runs / "whole", "--traceback")
    assert (answer.code, answer.out) == (1, "")
    assert "no error of your own code is kept in this run" in answer.err
    text = "train() raised NameError: x (loop.py:7, in train)"
    keep_failure(place, CodeFailure.now("l", text, "Traceback:\n  \x1b[31mline\nNameError: x\n"))
    shown = cli("show", runs / "whole").out
    assert f"error      {text}\n" in shown
    assert f"traceback  planner show {shlex.quote(place.url)} --traceback\n" in shown
    assert cli("show", runs / "whole", "--traceback").out == "Traceback:\n  \\x1b[31mline\nNameError: x\n"
    found = json.loads(cli("show", runs / "whole", "--json").out)
    assert found["error"] == text
    keep_failure(place, CodeFailure.now("l", text, "old\n").model_copy(update={"time_s": 1.0}))
    assert "error  " not in cli("show", runs / "whole").out
    assert cli("show", runs / "whole", "--traceback").out == "old\n"


def test_a_mistake_outside_a_run_is_told_with_the_file_that_has_its_traceback(cli, tmp_path, monkeypatch):
    """The same file each time, for this user only."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_broken_loop.py").write_text("def dataset():\n    return undefined\n\ndef train(run):\n    pass\n")
    (tmp_path / "job.yaml").write_text(
        "name: own\nmodel: {kind: own}\ndata: {kind: own, path: my_broken_loop.py}\nobjective: own\n"
        "batch: {global: 4, max_micro: 1}\ntrain: {steps: 2, optimizer: {kind: own}}\nworkers: {gpus: 0}\n"
    )
    answer = cli("run", "job.yaml")
    file = tmp_path / "cache" / "traceback.txt"
    assert answer.code == 2
    assert "NameError: name 'undefined' is not defined (" in answer.err
    assert f"{tmp_path / 'my_broken_loop.py'}:2, in dataset)" in answer.err
    assert f"planner: For the whole traceback: {file}\n" in answer.err
    assert "return undefined" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_the_json_has_every_field(cli, runs):
    """The keys are a public interface."""
    first = next(line for line in json.loads(cli("runs", runs, "--json").out) if line["run"].endswith("whole"))
    assert set(first) == {field.name for field in dataclasses.fields(RunLine)}
    assert (first["step"], first["total_steps"], first["committed_step"], first["world_size"]) == (4, 4, 4, 1)


def test_a_live_driver_is_running_and_one_elsewhere_holds(cli, runs):
    """A process on this machine can be checked. For another machine, the list says that it cannot know."""
    say_more_steps(runs / "whole")
    with DriverLease(Storage(str(runs / "whole")), "launch", print):
        assert states(cli)["whole"] == "running"
        assert "ended       running" not in cli("show", runs / "whole").out
        assert re.search(r"\[2, 4\)  commit  running", cli("show", runs / "whole").out)
    assert states(cli)["whole"] == "stopped"
    elsewhere = this_driver("other", beat_s=5.0).model_copy(update={"place": "another boot"})
    Storage(str(runs / "whole")).write(lease_name(9), seal(elsewhere))
    assert states(cli)["whole"] == "elsewhere"
    assert cli("runs").out.endswith(
        "elsewhere: a driver on another machine has the lease. planner cannot tell from here whether that driver is "
        "still running\n"
    )


@pytest.mark.parametrize("damage", ["manifests", "checkpoints", "ledger", "jobs", "run.json", "ledger/000002.jsonl"])
@pytest.mark.parametrize("how", ["removed", "a file", "a folder"])
def test_no_damage_stops_the_list_or_show(cli, runs, damage, how):
    """The list has all three runs, and `show` shows the run or one line with the reason."""
    harmed = runs / "whole" / damage
    shutil.rmtree(harmed) if harmed.is_dir() else harmed.unlink()
    if how == "a file":
        harmed.write_text('{"head":"' + "0" * 64 + '","record":{}}\n')
    elif how == "a folder":
        harmed.mkdir()
    assert len(states(cli)) == 3
    answer = cli("show", runs / "whole")
    assert answer.code in {0, 1}
    assert (answer.err.count("\n"), bool(answer.out)) == (answer.code, answer.code == 0)


def test_a_header_that_no_plan_serves_is_a_reason(cli, runs):
    """The list shows the other runs, and `show` prints one line."""
    segment = runs / "whole" / "ledger" / "000002.jsonl"
    segment.write_text(segment.read_text().replace('"world_size":1', '"world_size":0', 1))
    assert states(cli)["whole"] == "broken"
    answer = cli("show", runs / "whole")
    assert "the world size is 0" in answer.err


def test_show_tells_everything(cli, runs, recorded):
    """Identity, generations, losses, events and the command that resumes."""
    say_more_steps(runs / "longer")
    answer = cli("show", runs / "longer")
    assert (answer.code, answer.err) == (0, "")
    said = dict(re.split(r" {2,}", line, maxsplit=1) for line in answer.out.splitlines()[:12] if "  " in line)
    assert said["state"] == "stopped"
    assert said["batch"] == "global 6, equality balanced"
    assert said["step"] == "4 of 9"
    assert said["model"].startswith("gpt, layers 1, width 16, heads 2, context 16")
    assert re.search(r"1 +1  1 x 6  \[0, 2\)  start   with a commit +0", answer.out)
    assert "held-out loss" in answer.out.splitlines()[-1]
    (resume,) = re.findall(r"(?m)^resume +(.*)$", answer.out)
    planner, run, file = shlex.split(resume, comments=True)
    assert (planner, run) == ("planner", "run")
    # The copy in the run's folder is a job file: the very job, with absolute paths.
    assert read_job(file).name == read_job(recorded.job).name
    found = json.loads(cli("show", runs / "longer", "--json").out)
    keys = {field.name for kind in (RunLine, RunDetail) for field in dataclasses.fields(kind)} - {"summary"}
    assert set(found) == keys
    assert [loss[0] for loss in found["held_out"]] == [0, 2, 4]
    assert found["resume"] == resume.partition("   #")[0]


def test_a_folder_before_its_first_run_is_no_error(cli, tmp_path):
    """The default folder does not exist before the first run. A missing folder that was named is an error."""
    answer = cli("runs")
    assert (answer.code, answer.out, answer.err) == (0, "no runs yet: `planner run JOB` makes the first\n", "")
    assert json.loads(cli("runs", "--json").out) == []
    assert list(tmp_path.iterdir()) == []
    answer = cli("runs", "others")
    assert (answer.code, answer.out) == (1, "")
    assert "others: no such folder" in answer.err


def test_a_folder_without_a_run_is_refused_in_a_sentence(cli, runs):
    """Exit code 1, as for an audit without a run."""
    advice = "Check the path, or list the runs in a folder: planner runs FOLDER"
    for command in ("show", "audit"):
        assert f"runs: no run here (no run.json). {advice}\n" in cli(command, runs).err
    assert "no such folder" in cli("runs", "gone").err
    for prefix in ("", "file://"):
        answer = cli("runs", f"{prefix}{runs / 'notes.txt'}")
        assert "notes.txt: this is a file. Write the folder that holds your runs\n" in answer.err
    assert cli("show", "").code == cli("runs", "").code == 2
    assert cli("runs", runs / "notes").out == f"no runs in {runs / 'notes'}\n"
