"""`planner simulate JOB`: text, JSON and pictures of a job on a spot trace, and what it refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest

TRACE = "time_s,available_nodes\n0,2\n1800,4\n5400,3\n7200,3\n"


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(TRACE)
    return file


def test_four_policies_stand_side_by_side_in_80_columns(cli, job, trace):
    """The best bound is last. Below them is what planner's controller did, with its reasons."""
    answer = cli("simulate", str(job), "--trace", str(trace), "--set", "workers.max=4")
    assert answer.code == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines()]
    policies = [row[0] for row in rows if row and row[0] in {"ours", "stock", "fair", "optimum"} and len(row) == 9]
    assert policies == ["ours", "stock", "fair", "optimum"]
    table = answer.out[answer.out.index("policy ") :].split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "assumed: a step takes 5 s with 4 workers (--step or --rates say otherwise)" in answer.out
    assert "newcomers start: resize: 2 -> 3" in answer.out


def test_a_floor_is_not_simulated(cli, job, trace):
    """A trace has nodes of one kind."""
    answer = cli("simulate", str(job), "--trace", str(trace), "--set", "workers.min_on=on-demand")
    assert "workers.min_on is not simulated" in answer.out


def test_one_policy_has_its_keys_at_the_top(cli, job, trace):
    """The five times add up, and equal commands print equal documents."""
    words = ("simulate", str(job), "--trace", str(trace), "--policy", "ours", "--json", "--notice", "60s:0.5")
    answer = cli(*words)
    found = json.loads(answer.out)
    assert found["policy"] == "ours"
    assert found["total_s"] == 7200
    parts = ("useful_s", "paused_s", "redone_s", "idle_s", "commit_s")
    assert sum(found[part] for part in parts) == pytest.approx(7200)
    assert cli(*words).out == answer.out
    assert "policies" not in found


def test_hours_cut_the_trace(cli, job, trace):
    """The first half hour has no change."""
    words = ("simulate", str(job), "--trace", str(trace), "--hours", "0.5", "--policy", "stock", "--json")
    found = json.loads(cli(*words).out)
    assert (found["total_s"], found["resizes"], found["paused_s"]) == (1800, 1, 60)


def test_rates_say_how_long_steps_take(cli, job, trace, tmp_path):
    """In place of an assumption. With --step, the assumption is named."""
    rates = tmp_path / "rates.yaml"
    rates.write_text(
        "format: 1\nbatch: {global: 6, max_micro: 4}\nterms: {sample_s: {value: 2.0, source: fitted}}\n"
        "measured: [{world_size: 2, steps: 40, seconds: 7.0}]\n"
    )
    words = ("simulate", str(job), "--trace", str(trace), "--policy", "stock")
    assert f"by {rates}" in cli(*words, "--rates", str(rates)).out
    assert "by --step" in cli(*words, "--step", "2").out


@pytest.mark.parametrize(("name", "begins"), [("p.svg", b"<?xml"), ("p.png", b"\x89PNG")])
def test_a_plot_is_a_file_of_its_own(cli, job, trace, tmp_path, name, begins):
    """It is not replaced without --force, and equal runs draw equal files."""
    pytest.importorskip("matplotlib")
    file = tmp_path / name
    words = ("simulate", str(job), "--trace", str(trace), "--plot", str(file))
    assert cli(*words).code == 0
    drawn = file.read_bytes()
    assert drawn.startswith(begins)
    assert "the file exists" in cli(*words).err
    assert cli(*words, "--force").code == 0
    assert file.read_bytes() == drawn


def test_a_plot_counts_whole_workers(cli, job, tmp_path):
    """Its axis has no 2.5."""
    pytest.importorskip("matplotlib")
    trace, file = tmp_path / "t.csv", tmp_path / "p.svg"
    trace.write_text("time_s,available_nodes\n0,8\n7200,8\n")
    words = ("--set", "batch.global=8", "--set", "workers.max=8", "--policy", "stock", "--plot", str(file))
    answer = cli("simulate", str(job), "--trace", str(trace), *words)
    assert answer.code == 0, answer.err
    ticks = re.findall(r"<text[^>]*>([0-9.]+)</text>", file.read_text())
    assert "8" in ticks
    assert "2.5" not in ticks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "write either --trace FILE.csv or --synthetic"),
        (["--trace", "TRACE", "--synthetic", "nodes=2"], "write either --trace FILE.csv or --synthetic"),
        (["--trace", "no.csv"], "no.csv: found no such file"),
        (["--trace", "JOB"], "line 1: found no column time_s. The first line must be time_s,available_nodes"),
        (["--trace", "TRACE", "--notice", "soon"], "--notice is 'soon'. Write a duration such as 90s"),
        (["--trace", "TRACE", "--notice", "30s:3"], "--notice, behind the colon, is '3'. Write a number from 0 to 1"),
        (["--trace", "TRACE", "--policy", "best"], "--policy is 'best'. Write one of ours, stock"),
        (["--trace", "TRACE", "--save", "-1"], "--save is -1. Write seconds from 0"),
        (["--trace", "TRACE", "--step", "0"], "--step is 0. Write a number from 0.001"),
        (["--trace", "TRACE", "--hours", "nan"], "--hours is nan. Write a number"),
        (["--trace", "TRACE", "--step", "1", "--rates", "r.yaml"], "--step and --rates both say"),
        (["--trace", "TRACE", "--plot", "p.jpg"], "--plot is 'p.jpg'. Write a file whose name ends with .svg or .png"),
        (["--trace", "TRACE", "--set", "workers.min=5", "--set", "workers.max=6"], "the job needs 5 (workers.min)"),
        (["--synthetic", "speed=3"], "--synthetic has no 'speed'"),
    ],
)
def test_what_it_refuses(cli, job, trace, words, said):
    """With exit code 2, and what to write."""
    there = {"TRACE": str(trace), "JOB": str(job)}
    answer = cli("simulate", str(job), *(there.get(word, word) for word in words))
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_a_wrong_line_of_events_is_named(cli, job, trace):
    """The sibling file is read where it is there."""
    trace.with_name("t.events.csv").write_text("time_s,event,node\n0,came,a\n")
    answer = cli("simulate", str(job), "--trace", str(trace))
    assert answer.code == 2
    assert "t.events.csv: line 2: event is 'came'. Write add, remove or notice" in answer.err


def test_events_decide_which_nodes_are_there(cli, job, trace):
    """The counts beside them do not count, and a line says so. Without events, there is no such line."""
    said = "nodes come and go as the events file says, whatever available_nodes says"
    words = ("simulate", str(job), "--trace", str(trace), "--policy", "stock")
    assert said not in " ".join(cli(*words).out.split())
    trace.with_name("t.events.csv").write_text("time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n60,remove,c\n")
    out = " ".join(cli(*words).out.split())
    assert said in out
    assert "at most 3 nodes, at least 2 for half of the time, 1 node lost" in out


def test_the_guide_shows_what_the_command_prints(cli, tmp_path, monkeypatch):
    """Each row of its example."""
    monkeypatch.chdir(tmp_path)
    assert cli("init", "job.yaml").code == 0
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "spot-simulation.md").read_text()
    command = next(line for line in guide.splitlines() if line.startswith("$ planner simulate "))
    example = guide[guide.index("policy   useful") :].split("...")[0]
    assert example in cli(*shlex.split(command)[2:]).out


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,2\n1e18,2\n", "takes too long to play. Write --hours 2073"),
        ("-1e308,2\n1e308,2\n", "takes too long to play"),
        ("0,100000\n3600,100000\n", "nodes come or go 100,000 times in the trace, and planner plays at most 20,000"),
        (f"0,{'9' * 5000}\n3600,1\n", "Write a whole number from 0 to 100,000"),
    ],
)
def test_a_trace_that_would_take_hours_to_play_is_refused(cli, job, trace, rows, said):
    """Before anything is played."""
    trace.write_text("time_s,available_nodes\n" + rows)
    answer = cli("simulate", str(job), "--trace", str(trace))
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


@pytest.mark.parametrize(
    "words",
    ["length=1000000000", "flap=1s:10000", "ramp=0.0000001s", f"nodes={'9' * 5000}", "nodes=10000 length=10d"],
)
def test_a_regime_with_too_many_changes_is_refused(cli, job, words):
    """Before the trace is made."""
    answer = cli("simulate", str(job), "--synthetic", words)
    assert answer.code == 2
    assert "--synthetic" in answer.err or "takes too long to play" in answer.err


@pytest.mark.parametrize("path", ["", "/", "."])
def test_a_folder_is_no_trace(cli, job, path):
    """It may have no name."""
    assert cli("simulate", str(job), "--trace", path).code == 2


def test_nodes_with_too_much_room_or_steps_of_no_time_are_refused(cli, job, trace, tmp_path):
    """They would never end."""
    answer = cli("simulate", str(job), "--trace", str(trace), "--gpus-per-node", "1000000000")
    assert (answer.code, "Use fewer" in answer.err) == (2, True)
    rates = tmp_path / "rates.yaml"
    rates.write_text(
        "format: 1\nbatch: {global: 6, max_micro: 4}\nterms: {sample_s: {value: 1.0e-12, source: fitted}}\n"
    )
    answer = cli("simulate", str(job), "--trace", str(trace), "--rates", str(rates))
    assert answer.code == 2
    assert "Correct --rates or --step" in " ".join(answer.err.split())


def test_nodes_that_came_before_the_trace_are_there_at_its_start(cli, job, trace):
    """Their events have earlier times than its first row."""
    trace.write_text("time_s,available_nodes\n1000,1\n4600,1\n")
    trace.with_name("t.events.csv").write_text("time_s,event,node\n0,add,a\n10,add,b\n500,remove,b\n")
    answer = cli("simulate", str(job), "--trace", str(trace), "--policy", "ours", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["idle_s"] == 0
