"""`import planner`: its names, that they do what the commands do, and the types that a type checker sees."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import planner
from planner.errors import ClusterUnreachable, PlanError, ResumeRefused, StoreError, UserError

ROOT = Path(__file__).parents[2]
NAMES = ["Job", "Plan", "Run", "audit", "plans", "read_job", "run"]
HEAVY = {"torch", "ray", "numpy", "pydantic", "yaml", "typer", "rich"}

# What a user's file may say, and below it what it may not.
USER = """
from typing import assert_type

import planner
from planner import Job, Plan, Run

job = planner.read_job("job.yaml", ["train.steps=4"])
assert_type(job, Job)
assert_type(planner.plans(job, gpus=range(1, 4)), list[Plan])
assert_type(planner.plans("job.yaml")[0].shares, tuple[tuple[int, int], ...])
result = planner.run(job, "127.0.0.1:6379", accept=["data"], say=print)
assert_type((result.url, result.step, result.total_steps), tuple[str, int, int])
assert_type((result.finished, result.resume_command), tuple[bool, str])
found = planner.audit(result.url, code="loop.py")
assert_type((found.clean, found.findings), tuple[bool, tuple[str, ...]])


def train(run: Run) -> None:
    assert_type((run.rank, planner.__version__), tuple[int, str])
"""
WRONG = {
    "planner.audit(3)": "arg-type",
    "planner.plans('job.yaml', gpus='1-4')": "arg-type",
    "planner.run('job.yaml').step = 3": "misc",
    "planner.no_such_name": "attr-defined",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of the test. Variables that Ray reads are restored, and no cluster is started."""
    for name in ("RAY_ADDRESS", "PLANNER_RESUME"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.runner.execute.embedded", interrupted)
    if "ray" in sys.modules:  # a test before this one may have connected this process
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        monkeypatch.setattr("planner.dispatch.connection.keeps_loopback", lambda: True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(os.environ) - set(before):
        del os.environ[name]


def in_a_fresh_interpreter(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.process
def test_errors_of_the_python_api_are_public():
    """`except planner.errors.PlannerError` needs no further import."""
    code = "import planner\ntry: planner.read_job('no such file')\nexcept planner.errors.PlannerError: print('caught')"
    assert in_a_fresh_interpreter(code) == {"caught"}
    assert "PlannerError" in in_a_fresh_interpreter("import planner; print(*dir(planner.errors))")


def test_the_public_names_are_these():
    """Every public name is kept forever, so a new one needs a decision."""
    assert planner.__all__ == NAMES
    assert set(NAMES) <= set(dir(planner))
    assert all(getattr(planner, name) for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = planner.no_such_name


def test_no_public_name_is_a_rooms():
    """Importing a room of that name would overwrite it."""
    rooms = {path.stem for path in (ROOT / "planner").iterdir()}
    assert {"plan", "job", "order"} <= rooms
    assert not rooms & set(NAMES)


@pytest.mark.process
def test_the_package_alone_loads_nothing():
    """Names are imported on first use. Plans need no numpy, and only a run needs torch."""
    shown = "; print(*sys.modules)"
    assert not HEAVY & in_a_fresh_interpreter(f"import sys, planner; dir(planner){shown}")
    loaded = in_a_fresh_interpreter(f"import sys, planner; planner.plans, planner.Job, planner.read_job{shown}")
    assert not {"torch", "ray", "numpy", "typer", "rich"} & loaded
    loaded = in_a_fresh_interpreter(f"import sys, planner; planner.run, planner.audit{shown}")
    assert not {"torch", "ray", "typer", "rich"} & loaded


def test_plans_are_those_of_the_command(cli, job):
    """By default and at given counts, from a file and from a job."""
    for arguments, gpus in (([], None), (["--gpus", "1-3,9"], [1, 2, 3, 9])):
        shown = json.loads(cli("plan", job, *arguments, "--json").out)
        for given in (job, str(job), planner.read_job(job)):
            found = planner.plans(given, gpus)
            assert [(plan.world_size, plan.digest) for plan in found] == [
                (row["world_size"], row["digest"]) for row in shown
            ]
    with pytest.raises(UserError, match="world size"):
        planner.plans(job, [0])


def test_a_recipe_is_sent_to_convert(tmp_path):
    """With the message of the command."""
    file = tmp_path / "recipe.yaml"
    file.write_text("train_batch_size: 64\nzero_optimization: {stage: 3}\n")
    with pytest.raises(UserError, match=r"a DeepSpeed configuration, not a job. .* planner convert "):
        planner.read_job(file)


@pytest.mark.usefixtures("place")
def test_a_finished_run_is_a_result(recorded):
    """Nothing is started."""
    result = planner.run(recorded.job)
    assert (result.finished, result.step, result.total_steps) == (True, 4, 4)
    assert result.url == str(recorded.run)
    assert result.committed == f"step 4 of 4 is committed in {recorded.run}"


@pytest.mark.process
def test_an_interrupted_run_is_a_result(job, place):
    """It has the newest commit and what resumes it: a command for a file, the same call for a job."""
    lines = []
    result = planner.run(job, nodes=2, say=lines.append)
    assert (result.finished, result.step, result.total_steps) == (False, 0, 4)
    assert result.resume_command == f"planner run {job} --nodes 2"
    assert lines == [f"tiny: a new run in {place}/run"]
    assert planner.run(planner.read_job(job)).resume_command == "planner.run(job)"


@pytest.mark.process
def test_what_the_command_refuses_is_raised(cli, recorded, place):
    """Another seed, a field that cannot be accepted, a dead address: with the command's messages."""
    job = planner.read_job(recorded.job, ["train.seed=1"])
    with pytest.raises(ResumeRefused) as caught:
        planner.run(job)
    assert cli("run", recorded.job, "--set", "train.seed=1").err == f"planner: {caught.value}\n"
    with pytest.raises(UserError, match="--accept nothing: write one of "):
        planner.run(job, accept=["nothing"])
    elsewhere = planner.read_job(recorded.job, [f'checkpoint.path="{place}/new"'])
    with pytest.raises(ClusterUnreachable, match=r"no Ray cluster at 127.0.0.1:1: "):
        planner.run(elsewhere, "127.0.0.1:1")


@pytest.mark.usefixtures("place")
def test_the_bounds_of_nodes_are_those_of_the_command(job):
    """Without a check, a thousand nodes would be started, or none."""
    for nodes in (-1, 65):
        with pytest.raises(UserError, match=f"nodes is {nodes}. Write 1 to 64"):
            planner.run(job, nodes=nodes)


def test_a_string_is_one_word_and_a_path_is_a_folder(recorded):
    """Iterating over a string would give its letters."""
    assert planner.read_job(recorded.job, "train.seed=7").train.seed == 7
    with pytest.raises(UserError, match=r"^--accept nothing: write one of "):
        planner.run(recorded.job, accept="nothing")
    assert planner.audit(Path(recorded.run)).clean


@pytest.mark.usefixtures("place")
def test_another_thread_is_refused(job):
    """Only the main thread gets signals, so workers of such a run could not be told to commit."""
    caught = []

    def call():
        try:
            planner.run(job)
        except UserError as error:
            caught.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert caught == ["planner.run was called in another thread. Call it in the main thread, which gets the signals"]


@pytest.mark.process
@pytest.mark.usefixtures("place")
def test_a_process_that_is_connected_to_ray_is_told_so(job, monkeypatch):
    """Before a cluster is started, because its error would look like a busy machine."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(UserError, match=r"already connected to a Ray cluster. Call ray.shutdown\(\) first"):
        planner.run(job, nodes=2)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert not planner.run(job, nodes=2).finished


def test_an_audit_is_that_of_the_command(cli, recorded):
    """Every number is equal."""
    shown, found = json.loads(cli("audit", recorded.run, "--json").out), planner.audit(str(recorded.run))
    assert found.clean
    assert shown["clean"]
    for key in ("steps", "samples", "lost", "repeated", "mismatched", "recomputed", "uncommitted"):
        assert getattr(found, key) == shown[key], key
    assert len(found.phases) == 2


def test_the_documented_example_runs(recorded, place, capsys):
    """The code in docs/reference/python-api.md, on a finished run."""
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "python-api.md").read_text(), re.DOTALL
    )
    shutil.copy(recorded.job, place / "job.yaml")
    exec(compile(example, "docs/reference/python-api.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["1 workers: 1 x 6 samples, 2 rounds", "2 workers: 2 x 3 samples, 1 rounds"]
    assert shown[-1] == "4 of 4 steps, audit clean: True"


@pytest.mark.parametrize("gpus", [2, [2], range(2, 3), np.arange(2, 3), (count for count in (2,))], ids=type)
def test_counts_are_whole_numbers_of_any_kind(job, gpus):
    """They become Python integers, because the ledger's digest is made of them."""
    assert [plan.digest for plan in planner.plans(job, gpus)] == [planner.plans(job, [2])[0].digest]


@pytest.mark.parametrize("gpus", [2.0, "2", [2.0], [True], True, ["2"], None.__class__])
def test_other_counts_are_refused_in_a_sentence(job, gpus):
    with pytest.raises(PlanError, match="write whole numbers, such as"):
        planner.plans(job, gpus)


def test_one_override_may_be_a_string(job):
    """For Python, a string is also a sequence of strings."""
    assert planner.read_job(job, "batch.max_micro=1").batch.max_micro == 1


def test_a_path_is_as_good_as_its_text(job):
    with pytest.raises(StoreError, match="no run"):
        planner.audit(job.parent / "nowhere")


@pytest.mark.process
def test_a_ray_that_was_imported_first_is_told_apart():
    """Ray would look for a local cluster at the machine's outer address, for minutes."""
    code = (
        "import os, socket, ray\n"
        "from planner.dispatch import launch\n"
        "from planner.dispatch.connection import connected\n"
        "from planner.errors import ClusterUnreachable, UserError\n"
        "launch.set_environment(launch.EMBEDDED, embedded=True)\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    try:\n"
        "        with connected(f'127.0.0.1:{server.getsockname()[1]}', verbose=False, embedded=True): pass\n"
        "    except UserError as error:\n"
        "        print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ray was imported before planner.run could set the variables that a local cluster ")


@pytest.mark.process
def test_a_users_type_checker_sees_the_types(tmp_path):
    """mypy --strict accepts a file of correct uses, and reports one error for each wrong use."""
    # None of their types is in what is checked here, and to read them takes most of the time.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,ray.*,transformers.*,pyarrow.*]\nfollow_imports = skip\n")
    (tmp_path / "right.py").write_text(USER)
    (tmp_path / "wrong.py").write_text("\n".join(["import planner", "", *WRONG]))
    options = ["--strict", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert found == [("wrong.py", str(line), kind) for line, kind in enumerate(WRONG.values(), start=3)], done.stdout
