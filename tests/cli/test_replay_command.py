"""`planner simulate --replay RUN`: a run's own nodes, times and row, its line in `show`, and what is refused."""

import json
import re
import shutil

import pytest
from made_runs import BEGAN_S, commit, header, measurement, step, write_run

from planner.events.capacity import Capacity
from planner.events.event import facts_of
from planner.events.failures import NodesLost
from planner.files import read_job
from planner.store.jobs import job_digest
from planner.store.records import EventRecord

ROWS = ["run", "ours", "stock", "fair", "optimum"]
SHOWN = r"kept \d\d% of the steps that its nodes could have done: stock Ray Train would have kept about \d\d%, the best"


@pytest.fixture
def demo(job):
    """The tiny job with the batch of the made-up ledgers."""
    job.write_text(job.read_text().replace("{global: 6, max_micro: 4}", "{global: 64, max_micro: 8}"))
    return job


def noted(event, at_s):
    return EventRecord(event=event.name, facts=facts_of(event), message="x", time_s=BEGAN_S + at_s)


def nodes(at_s, names, written_s):
    return noted(Capacity(time_s=BEGAN_S + at_s, nodes=tuple(names), places=len(names), leaving=()), written_s)


def records(digest, *, has_nodes=True, is_steady=False, is_joined=False):
    """20 min with 4 nodes, of which one is lost, and 10 min with the others."""

    def begin(number, workers, first, at_s):
        return header(number, workers, first, time_s=BEGAN_S + at_s, job_digest=digest, launch_id="a", total_steps=9000)

    yield begin(1, 4, 0, 0)
    yield from [nodes(0, "abcd", 0)] if has_nodes else []
    for number in range(0, 1200, 10):
        yield from map(step, range(number, number + 10))
        yield measurement(number + 10, BEGAN_S + number + 10)
    yield commit(1180, seconds=2.0)
    yield from [nodes(600, "abcde", 1200)] if is_joined else []
    if not is_steady:
        yield begin(2, 3, 1180, 1230)
        yield from [nodes(1210, "abc", 1230)] if has_nodes else []
        yield noted(NodesLost(nodes=1, told=0, from_memory=False), 1230)
        yield from (step(number, seconds=4 / 3) for number in range(1180, 1630))
        yield measurement(1630, BEGAN_S + 1830)


@pytest.fixture
def made(demo, tmp_path):
    """`made(**how)` -> a run's folder with such records, and the job in it."""

    def make(**how):
        spec = read_job(str(demo))
        run = write_run(tmp_path / "made", records(job_digest(spec), **how))
        run.keep_job(spec)
        return tmp_path / "made"

    return make


def test_the_run_stands_beside_what_others_make_of_its_nodes(cli, made):
    """With its own steps and costs. What it has not measured is assumed, and said."""
    answer = cli("simulate", "--replay", made())
    assert answer.code == 0, answer.err
    table = answer.out[answer.out.index("policy ") :].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[1:]] == ROWS
    assert "31 min, at most 4 nodes, at least 4 for half of the time, 1 node lost\n" in answer.out
    assert "by the run: nodes come, go and get notice as the ledger has them. A node holds 1 worker" in answer.out
    assert "by the run: a step takes 1 s with 4 workers. The run has measured steps with 3 and 4" in answer.out
    assert "a start pauses training for 28 s, a commit for 2 s. Newcomers take 20 s beside the group" in answer.out
    assert "(stock), a start takes 48 s" in answer.out
    assert "not measured the seconds of newcomers, so these are assumed" in answer.out
    assert "\nours, the first changes\n" in answer.out


def test_its_json_has_the_run_first(cli, made):
    """Also with one policy. Costs that are written count."""
    run = made()
    answer = cli("simulate", "--replay", run, "--policy", "stock", "--restart", "7", "--lead", "0", "--json")
    found = json.loads(answer.out)
    assert [each["policy"] for each in found["policies"]] == ["run", "stock"]
    assert found["seed"] is None
    own, stock = found["policies"]
    assert (own["steps"], own["losses"], own["resizes"], own["commits"]) == (1630, 1, 2, 1)
    parts = ("useful_s", "paused_s", "redone_s", "idle_s", "commit_s")
    for each in (own, stock):
        assert sum(each[part] for part in parts) == pytest.approx(own["total_s"]) == each["total_s"]
    assert own["redone_s"] == 20
    assert stock["paused_s"] == 14
    assert [change["what"] for change in own["changes"]] == ["starts", "lost", "starts"]


def test_a_ledger_without_nodes_is_played_by_its_groups(cli, made):
    """And it is said."""
    answer = cli("simulate", "--replay", made(has_nodes=False))
    assert answer.code == 0, answer.err
    assert "by the run: the ledger does not have the nodes. Each worker is taken for a node" in answer.out
    assert "at most 4 nodes, at least 4 for half of the time, 1 node lost" in answer.out


def test_a_replay_is_drawn(cli, made, tmp_path):
    """The run's own workers, too."""
    pytest.importorskip("matplotlib")
    assert cli("simulate", "--replay", made(), "--plot", "p.svg").code == 0
    assert "run: 9" in (tmp_path / "p.svg").read_text()


def test_show_and_report_have_a_line_of_it(cli, made, tmp_path):
    """With the command that says more."""
    run = made()
    out = " ".join(cli("show", run).out.split())
    assert re.search(f"spot {SHOWN}", out), out
    assert f"(planner simulate --replay {run})" in out
    found = json.loads(cli("show", run, "--json").out)["node_use"]
    assert 0.5 < found["stock"] < found["kept"] < found["optimum"] < 1
    pytest.importorskip("matplotlib")
    assert cli("report", run, "--no-audit").code == 0
    assert re.search(f"It {SHOWN}", (tmp_path / "report.html").read_text())


def test_a_run_whose_nodes_did_not_change_has_no_line(cli, made):
    """Nor one with the same nodes by its groups."""
    run = made(is_steady=True)
    assert "spot" not in cli("show", run).out
    assert json.loads(cli("show", run, "--json").out)["node_use"] is None
    assert cli("simulate", "--replay", run).code == 0


def test_a_run_that_has_measured_no_start_has_no_line(cli, made):
    """A node came, and no group used it. What is assumed for a start would be most of the figures."""
    run = made(is_steady=True, is_joined=True)
    assert json.loads(cli("show", run, "--json").out)["node_use"] is None
    answer = cli("simulate", "--replay", run)
    assert "at most 5 nodes" in answer.out
    assert "not measured the seconds of a start, newcomers or a loss, so these are assumed" in answer.out


def test_a_replay_says_that_it_has_no_floor(cli, demo, made):
    """Policies take any node."""
    demo.write_text(demo.read_text().replace("workers: {", "workers: {min_on: on-demand, "))
    assert "min_on" in demo.read_text()
    assert "workers.min_on is not simulated" in cli("simulate", "--replay", made()).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job.yaml"], "--replay takes the job of the run. Leave JOB out"),
        (["--trace", "t.csv"], "--replay takes from the run what --trace would say. Leave --trace out"),
        (["--synthetic", "nodes=2"], "what --synthetic would say"),
        (["--notice", "30s"], "what --notice would say"),
        (["--rates", "r.yaml"], "what --rates would say"),
        (["--step", "3"], "what --step would say"),
        (["--gpus-per-node", "1"], "what --gpus-per-node would say"),
        (["--seed", "1"], "what --seed would say"),
        (["--hours", "1"], "what --hours would say"),
        (["--set", "workers.max=3"], "what --set would say"),
        (["--policy", "best"], "--policy is 'best'"),
        (["--save", "-1"], "--save is -1"),
    ],
)
def test_what_contradicts_the_run_is_refused(cli, made, words, said):
    """With exit code 2, whether the value is the default or not."""
    answer = cli("simulate", "--replay", made(), *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_without_a_job_or_a_run_there_is_nothing_to_play(cli, made):
    """JOB is needed without --replay alone, and --replay needs a run with steps."""
    assert "JOB is missing. Write a job file, or --replay RUN" in " ".join(cli("simulate").err.split())
    assert "--replay is empty" in cli("simulate", "--replay", "").err
    assert "no run" in " ".join(cli("simulate", "--replay", "nothing").err.split())
    run = made()
    job = next((run / "jobs").iterdir())
    job.rename(run / "gone")
    assert "the job that it was made with is gone" in " ".join(cli("simulate", "--replay", run).err.split())
    (run / "gone").rename(job)
    for segment in (run / "ledger").iterdir():
        segment.write_text(segment.read_text().splitlines(keepends=True)[0])
    assert "no typical step is on record" in " ".join(cli("simulate", "--replay", run).err.split())
    shutil.rmtree(run / "ledger")
    assert "no typical step is on record" in " ".join(cli("simulate", "--replay", run).err.split())


def test_a_damaged_ledger_makes_no_line_and_no_traceback(cli, made):
    """Sizes that no job can have."""
    run = made()
    segment = run / "ledger" / "000002.jsonl"
    segment.write_text(segment.read_text().replace('"max_micro":8', '"max_micro":0', 1))
    assert cli("simulate", "--replay", run).code != 0
    assert "spot" not in cli("show", run).out


def test_a_ledger_that_contradicts_itself_makes_no_line(cli, demo, tmp_path):
    """Four workers on one node for one worker would have kept 400 %."""
    spec = read_job(str(demo))
    first, second, *rest = records(job_digest(spec))
    run = write_run(tmp_path / "odd", [first, nodes(0, "a", 0), *rest[1:]])
    assert second.event == Capacity.name
    run.keep_job(spec)
    found = cli("show", tmp_path / "odd")
    assert found.code == 0
    assert "spot" not in found.out
