"""`--dry-run` checks what can be checked, shows what would happen, and does nothing."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from planner.base.disk import size_text
from planner.base.text import duration
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps
from planner.runner import dry_run, local
from planner.store import storage
from planner.store.lease import DriverLease
from planner.store.lease_record import lease_name, this_driver
from planner.store.lowered_caps import keep_caps
from planner.store.records import seal
from planner.store.storage import Storage

END = "dry run: nothing was started, nothing was written"


@pytest.fixture
def longer(recorded, tmp_path):
    """A copy of a run of four steps, and the arguments that ask for nine."""
    run = shutil.copytree(recorded.run, tmp_path / "run")
    return run, (str(recorded.job), "--set", f'checkpoint.path="{run}"', "--set", "train.steps=9")


def test_a_new_run_is_described_and_not_begun(cli, job, tmp_path):
    """The text has the place, the workers and the plan. The run's folder is not made."""
    before = sorted(tmp_path.rglob("*"))
    answer = cli("run", job, "--nodes", "3", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"tiny: a new run in {tmp_path}/run"
    assert lines[1] == "cluster   local Ray cluster, 3 workers (CPU)"
    assert lines[2] == "steps     0 to 3, 6 samples each"
    assert lines[3] == "eval      5 of 110 samples, held out of training"
    assert lines[4] == "compute   fp32, sdpa attention, torch's kernels, blocks not compiled, activations kept"
    assert lines[10] == "commits   every 2 steps, files kept for the newest 2"
    assert lines[16].endswith("the storage can hold a run.")
    assert lines[19].split()[:2] == ["3", "3"]
    assert "3 x 2" in lines[19]
    assert lines[-1] == "dry run: nothing was started, nothing was kept"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_floor_is_in_both_forms(cli, job):
    """A local cluster is its own floor, so nothing is waited for."""
    arguments = ("run", job, "--nodes", "2", "--dry-run", "--set", "workers.min_on=on-demand")
    found = json.loads(cli(*arguments, "--json").out)
    assert found["waits"] == ""
    assert found["floor"].startswith("workers.min: 1 worker on on-demand nodes (workers.min_on)")
    assert f"floor     {found['floor'][:60]}" in cli(*arguments).out
    plain = cli(*arguments[:-2]).out
    assert "on-demand" not in plain


def test_a_floor_is_looked_for_on_another_cluster(cli, job, monkeypatch):
    """Nodes and their labels are read while the dry run is connected."""
    asked = []

    @contextlib.contextmanager
    def connected(address, **_how):
        asked.append(address)
        yield
        asked.clear()

    monkeypatch.setattr(dry_run.connection, "connected", connected)
    monkeypatch.setattr(dry_run, "rented_nodes", lambda: [({"CPU": 2}, "spot" if asked else "not connected")])
    answer = cli("run", job, "--address", "127.0.0.1:1", "--dry-run", "--set", "workers.min_on=on-demand", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["cluster"] == "127.0.0.1:1: 1 node with room for 2 workers"
    assert "have room for 0, but workers.min is 1 (others have room for 2)" in found["waits"]


def test_all_that_happens_to_the_gradient_is_listed(cli, job):
    """In order, with the keys that change it. Only the first line has the label."""

    def found(*settings):
        lines = cli("run", job, *settings, "--dry-run").out.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("gradient  "))
        assert [line[:10].strip() for line in lines[start : start + 6]] == ["gradient", "", "", "", "", "commits"]
        return [line[10:] for line in lines[start : start + 5]]

    def exchanged(memory):
        where = f"where {memory} are at most a quarter of the free memory, else after every round"
        return f"Workers exchange them once per step {where}."

    assert found() == [
        "The loss sum is divided by its count over the whole global batch.",
        "Gradients are summed by FSDP over rounds and workers, never averaged.",
        exchanged("47.0 kB (4 bytes per trained parameter)"),
        "If a gradient is not finite, the run stops before the optimizer's step (train.non_finite: stop).",
        "A global norm above 1 is scaled down to 1 (train.clip_norm: 1).",
    ]
    other = ("train.clip_norm=null", "train.non_finite=skip", "batch.equality=bitwise")
    assert found(*(part for argument in other for part in ("--set", argument)))[1:] == [
        "Gradients are summed in int64 fixed point over rounds and workers, never averaged.",
        exchanged("94.1 kB (8 bytes per trained parameter)"),
        "If a gradient is not finite, the step is skipped (train.non_finite: skip).",
        "The gradient is not clipped (train.clip_norm: null).",
    ]


def test_compute_and_the_length_of_samples_are_in_both_forms(cli, job):
    """As in the plan. The tiny job's samples are windows of equal length."""
    arguments = ("run", job, "--nodes", "3", "--dry-run", "--set", "batch.max_micro=1")
    found = json.loads(cli(*arguments, "--json").out)
    assert (found["compute"]["precision"], found["compute"]["attention"]) == ("fp32", ["sdpa"])
    (warning,) = found["plan"]["warnings"]
    assert re.match(r"micro-batch 1 \(\d+ tokens\) is communication-bound", warning)
    assert warning in cli(*arguments).out


def test_a_limit_of_tokens_is_named_and_the_table_says_what_it_assumes(cli, job):
    """Without it, nothing is said of it."""
    limited, plain = (cli("run", job, *more, "--dry-run").out for more in (("--set", "batch.max_tokens=16"), ()))
    assert "batch     A micro-batch has at most 4 samples and 16 tokens (batch.max_tokens)" in limited
    assert "The table below assumes samples of equal length" in limited
    assert "batch.max_tokens" not in plain
    auto = cli("run", job, "--set", "batch.max_tokens=auto", "--dry-run").out
    assert "at most 4 samples and as many tokens as fit (batch.max_tokens)" in auto
    assert "auto: each worker group computes what fits into the memory of its machines." in " ".join(auto.split())
    assert "--gpu NAME" not in auto


def test_a_loop_of_ones_own_is_not_clipped_unless_asked(cli, own_job, tmp_path):
    """The user owns the optimizer, so planner adds nothing that they did not ask for."""
    (tmp_path / "loop.py").write_text("def dataset():\n    return range(9)\n\ndef train(run):\n    pass\n")
    assert " The gradient is not clipped (train.clip_norm: null).\n" in cli("run", own_job, "--dry-run").out
    asked = cli("run", own_job, "--set", "train.clip_norm=0.5", "--dry-run").out
    assert " A global norm above 0.5 is scaled down to 0.5 (train.clip_norm: 0.5).\n" in asked
    assert "\nstate     not known: your own loop makes the model. After the first commit, " in asked
    assert "\ngradient  Each loss sum of your loop is divided by its count over the whole global batch.\n" in asked


def test_a_job_for_gpus_on_a_machine_without_one_is_warned_of(cli, job, monkeypatch):
    """The warning says what the run would do. A job for CPUs, or a machine with GPUs, has none."""
    arguments = ("run", job, "--dry-run", "--set", "workers.gpus=1")
    trains_on_gpus = []
    rule = dry_run.compute_rule
    monkeypatch.setattr(
        dry_run, "compute_rule", lambda job, *, on_gpu: trains_on_gpus.append(on_gpu) or rule(job, on_gpu=on_gpu)
    )
    monkeypatch.setattr(local, "_num_gpus", lambda: 0)
    lines = cli(*arguments).out.splitlines()
    warning = "workers.gpus is 1 and this machine has no GPU. The workers train on the CPU"
    assert lines[2] == f"warning   {warning}"
    assert json.loads(cli(*arguments, "--json").out)["warning"] == warning
    assert "warning" not in cli("run", job, "--dry-run").out
    monkeypatch.setattr(local, "_num_gpus", lambda: 2)
    lines = cli(*arguments).out.splitlines()
    assert trains_on_gpus == [False, False, False, True]
    assert lines[1] == "cluster   local Ray cluster, 2 workers (2 GPUs)"
    assert lines[2].startswith("steps     ")


def test_the_size_of_a_commit_is_shown(cli, job, monkeypatch):
    """All workers of a local cluster share this machine's memory, and on the CPU the state itself is there too."""
    monkeypatch.setattr(dry_run, "available_bytes", lambda: 10**9)
    arguments = ("run", job, "--nodes", "3", "--dry-run")
    found = json.loads(cli(*arguments, "--json").out)
    state, worker, node = (found[key] for key in ("state_bytes", "worker_state_bytes", "node_state_bytes"))
    assert state > worker >= state / 3
    assert 3 * worker >= node >= state
    assert (found["available_bytes"], found["commit_s"], found["state_unknown"]) == (10**9, None, "")
    lines = cli(*arguments, "--storage-gbps", "1e-6").out.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("state "))
    copy = f"host memory for copies: at most {size_text(4 * node)} on this machine, where"
    assert lines[start].startswith(f"state     {size_text(state)}: ")
    assert lines[start + 1 : start + 4] == [
        f"          at most {size_text(worker)} per worker on 3 workers",
        f"          {copy} 1.0 GB are available",
        f"          a commit is durable after about {duration(state / 1e3)} at 1e-06 GB/s",
    ]
    lacks = ["copies of other nodes", "copies for resizes", "with synchronous commits"]
    for available, missing in ((5, 0), (4.99, 1), (3, 1), (2.99, 2), (2, 2), (1.99, 3)):
        monkeypatch.setattr(dry_run, "available_bytes", lambda available=available: int(available * node))
        [line] = [line for line in cli(*arguments).out.splitlines() if "host memory for copies" in line]
        assert ("That is too little: training would go on" in line) == (missing > 0)
        assert missing == 0 or lacks[missing - 1] in line


def test_the_storages_rate_is_for_dry_runs(cli, job):
    """A run measures its commits itself."""
    answer = cli("run", job, "--storage-gbps", "1")
    message = "--storage-gbps only changes what a dry run shows. Add --dry-run, or remove it"
    assert (answer.code, answer.err) == (2, f"planner: {message}\n")


def test_an_automatic_interval_is_named_with_its_key(cli, job):
    """The interval is not known before the run."""
    out = cli("run", job, "--dry-run", "--set", "checkpoint.every=auto").out
    assert "\ncommits   automatic interval (checkpoint.every: auto), files kept for the newest 2\n" in out


def test_copies_in_memory_are_named_with_their_key(cli, job):
    """How often, and what `off` means."""

    def copies(value):
        lines = cli("run", job, "--dry-run", "--set", f"checkpoint.memory={value}").out.splitlines()
        return next(line.removeprefix("copies    ") for line in lines if line.startswith("copies"))

    also = "and at each commit and planned change of the workers"
    assert copies("auto") == f"in memory, automatic interval (checkpoint.memory: auto), {also}"
    assert copies("1") == f"in memory, every 1 step (checkpoint.memory: 1), {also}"
    assert copies("20") == f"in memory, every 20 steps (checkpoint.memory: 20), {also}"
    assert copies("off").startswith("none in memory (checkpoint.memory: off): ")


def test_a_batch_larger_than_the_data_is_a_note(cli, job):
    """It is still trained."""
    answer = cli("run", job, "--set", "batch.global=500", "--dry-run")
    assert answer.code == 0
    assert "note      data: batch.global 500 is larger than an epoch of " in answer.out


def test_lengths_are_shown_in_steps(cli, job):
    """As the workers will record them. Without data, only lengths that do not depend on it."""
    arguments = ("train.steps=null", "train.epochs=1", "eval.every=40%", "checkpoint.every=20 examples rounded")
    settings = [part for argument in arguments for part in ("--set", argument)]
    lines = cli("run", job, *settings, "--dry-run").out.splitlines()
    steps = int(lines[2].split()[3].removesuffix(",")) + 1
    every = round(steps * 0.4)
    assert lines[3:6] == [
        f"length    train 1 epoch = {steps} steps ({steps * 6} examples)",
        f"length    eval every 40% = {every} steps ({every * 6} examples)",
        "length    commit every 20 examples rounded = 3 steps (18 examples)",
    ]
    assert cli("plan", job, *settings).out.splitlines()[1:4] == [
        "train 1 epoch, in steps once the data is open",
        "eval every 40%, in steps once the data is open",
        "commit every 20 examples rounded = 3 steps (18 examples)",
    ]


def test_the_costs_of_lengths_name_the_longest_sample(cli, job):
    """As a start does: the value in the error is enough for all samples, not only for those of the first steps."""
    answer = cli("plan", job, "--lengths", "--set", "batch.max_tokens=15")
    assert "batch.max_tokens: row 0 of data (the first is row 0) has 16 tokens, the most of all" in answer.err
    assert cli("plan", job, "--lengths", "--set", "batch.max_tokens=16").code == 0


def test_a_resume_says_where_it_would_begin(cli, longer):
    """As JSON, with the keys of `planner plan --json`. There are at most as many workers as samples."""
    run, arguments = longer
    before = sorted(run.rglob("*"))
    found = json.loads(cli("run", *arguments, "--nodes", "20", "--set", "workers.max=20", "--dry-run", "--json").out)
    assert (found["begins"], found["step"], found["total_steps"]) == ("resuming at step 4 of 9", 4, 9)
    assert (found["plan"]["world_size"], found["plan"]["shares"], found["notes"]) == (6, [[6, 1]], [])
    assert sorted(run.rglob("*")) == before


def test_a_resume_says_which_caps_the_run_has_lowered(cli, longer):
    """Of the last for each kind of device. With another cap in the job file, it begins anew."""
    run, arguments = longer
    arguments = [*arguments, "--set", "batch.max_micro=8", "--dry-run"]
    eight, four, two = (Caps(max_micro=most) for most in (8, 4, 2))
    lowered = tuple(
        LoweredCap(device="CPU", place="loss", was=was, now=now) for was, now in [(eight, four), (four, two)]
    )
    keep_caps(Storage(str(run)), LoweredCaps(of=eight, lowered=lowered))
    said = "CPU was out of memory in this run, so micro-batches there have at most 2 samples."
    assert said in cli("run", *arguments).out
    assert said not in cli("run", *arguments, "--set", "batch.max_micro=7").out


def test_what_differs_from_the_runs_job_is_listed(cli, longer):
    """Before anything is started."""
    _, arguments = longer
    answer = cli("run", *arguments, "--set", "checkpoint.keep=5", "--dry-run")
    lines = [line for line in answer.out.splitlines() if line.startswith("changed   ")]
    assert {"changed   checkpoint.keep: 2 -> 5", "changed   train.steps: 4 -> 9"} <= set(lines)


def test_a_dry_run_refuses_what_a_run_refuses(cli, longer, tmp_path):
    """Another job, a live driver, an unusable folder, a dead address: with the exit code of a real start."""
    run, arguments = longer
    assert "another seed" in cli("run", *arguments, "--set", "train.seed=1", "--dry-run").err
    with DriverLease(Storage(str(run)), "launch", print):
        answer = cli("run", *arguments, "--dry-run")
    assert (answer.code, answer.out) == (1, "")
    assert "is running this run. Stop it (kill " in answer.err
    (tmp_path / "file").write_text("x")
    answer = cli("run", *arguments, "--set", f"checkpoint.path={tmp_path}/file/run", "--dry-run")
    assert answer.code == 1
    answer = cli("run", *arguments, "--address", "127.0.0.1:1", "--dry-run")
    assert (answer.code, answer.out) == (1, "")


def torn_newest(run):
    """Tear the manifest of step 4 and return what planner says of that."""
    (run / "manifests" / "000000000004-000002.json").write_bytes(b"{")
    why = "manifests/000000000004-000002.json: torn or not written by this version of planner"
    again = "Without it, the run resumes from step 2, and does 2 steps again"
    return f"commit 000000000004-000002 was passed over: {why}. {again}"


def test_a_commit_that_is_passed_over_is_a_warning(cli, longer):
    """The dry run, `show` and the JSON of both say the same, with both steps. An export refuses."""
    run, arguments = longer
    note = torn_newest(run)
    why = "manifests/000000000004-000002.json: torn or not written by this version of planner"
    answer = cli("run", *arguments, "--dry-run")
    assert (answer.code, answer.out.splitlines()[0]) == (0, f"tiny: resuming at step 2 of 9 in {run}")
    assert f"\nwarning   commit 000000000004-000002 was passed over: {why}." in answer.out
    found = json.loads(cli("run", *arguments, "--dry-run", "--json").out)
    assert (found["step"], found["passed_over"]) == (2, [note])
    assert json.loads(cli("show", run, "--json").out)["passed_over"] == [note]
    assert "\nwarning    commit 000000000004-000002 was passed over" in cli("show", run).out
    exported = cli("export", run, "-o", "model")
    refused = f"{note.partition('. W')[0]}. Restore it, or write --step 2"
    assert (exported.code, exported.err) == (1, f"planner: {run}: {refused}\n")


@pytest.mark.process
def test_a_run_says_which_commit_it_passes_over(cli, longer):
    """In the lines before its cluster starts."""
    run, arguments = longer
    note = torn_newest(run)
    started = cli("run", *arguments)
    assert started.err.endswith("a cluster would have been started\n")
    opening = f"tiny: resuming at step 2 of 9 in {run} warning: {note}"
    assert "".join(opening.split()) in "".join(started.out.split())


def test_a_commit_that_cannot_be_read_now_ends_a_dry_run_and_a_run(cli, longer, monkeypatch):
    """It may be whole. Nothing is started."""
    _, arguments = longer
    read = storage.read_part

    def refusing(path, *part):
        if path.endswith("manifests/000000000004-000002.json"):
            raise PermissionError(13, "Permission denied")
        return read(path, *part)

    monkeypatch.setattr(storage, "read_part", refusing)
    for more in (["--dry-run"], []):
        answer = cli("run", *arguments, *more)
        assert (answer.code, answer.out) == (1, "")
        assert "Permission denied, and the commit of step 4 may be whole. Make it readable" in answer.err


def test_a_run_whose_name_is_gone_says_so(cli, longer):
    """And not that each of its commits is damaged."""
    run, arguments = longer
    (run / "run.json").unlink()
    says = "run.json is gone, and 2 commits belong to the run that it named. Restore run.json"
    for more in (["--dry-run"], []):
        assert cli("run", *arguments, *more).err.startswith(f"planner: {run}: {says}")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("memory://x", "memory://x: each process has a memory:// of its own"),
        ("/proc/x", "/proc/x: cannot write there"),
        ("/sys/x", "/sys/x: cannot write there"),
        (
            "/dev/null/x",
            "checkpoint.path: /dev/null is not a folder, and the run would be below it, in /dev/null/x. ",
        ),
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x: cannot use manifests: "),
        ("data://x", "data://x: cannot use manifests: its file system has no such operation"),
        ("zip://none.zip", "zip://none.zip: cannot be opened ("),
    ],
)
def test_a_place_that_can_hold_no_run_is_refused_by_dry_run_and_run(cli, job, path, says):
    """With the same sentence, before a cluster starts."""
    dry, real = (cli("run", job, "--set", f"checkpoint.path={path}", *more) for more in (["--dry-run"], []))
    assert (dry.code, dry.out, dry.err) == (real.code, real.out, real.err)
    assert (dry.code, dry.out) == (1, "")
    assert dry.err.startswith(f"planner: {says}")
    assert dry.err.count("\n") == 1


def test_a_file_in_the_runs_place_is_named(cli, job, tmp_path):
    """The file itself or one above the run, and what to write."""
    (file := tmp_path / "mine").write_text("x")
    for path, below in (("mine", ""), ("mine/a/run", f", and the run would be below it, in {file}/a/run")):
        for more in (["--dry-run"], []):
            answer = cli("run", job, "--set", f"checkpoint.path={path}", *more)
            told = f"planner: checkpoint.path: {file} is a file{below}. Write a folder, which need not exist yet"
            assert answer.err == f"{told}, such as {file}-run\n"
            assert (answer.code, answer.out) == (1, "")
    assert file.read_text() == "x"


def test_a_place_without_hard_links_is_refused_by_dry_run_and_run(cli, job, tmp_path, monkeypatch):
    """With the same sentence. Neither leaves a folder."""

    def refused(*_paths):
        raise PermissionError(1, "Operation not permitted", "a", None, "b")

    monkeypatch.setattr("os.link", refused)
    before = sorted(tmp_path.rglob("*"))
    for more in (["--dry-run"], []):
        answer = cli("run", job, *more)
        says = "cannot make a hard link to a file there (Operation not permitted). Choose another checkpoint.path"
        assert (answer.code, answer.err) == (1, f"planner: {tmp_path}/run: {says}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lease_of_another_machine_is_a_note(cli, longer):
    """Only a real start watches it."""
    run, arguments = longer
    elsewhere = this_driver("other", beat_s=5.0).model_copy(update={"place": "another boot"})
    Storage(str(run)).write(lease_name(9), seal(elsewhere))
    assert "held this run, so the start would watch its lease first" in cli("run", *arguments, "--dry-run").out


def test_a_finished_run_is_told_to_scripts(cli, recorded):
    """With --json, stdout has the output of `planner show --json`, and the text is on stderr."""
    answer = cli("run", recorded.job, "--json")
    assert (answer.code, answer.err) == (0, f"{recorded.run}: finished at step 4, nothing to do\n")
    assert json.loads(answer.out) == json.loads(cli("show", recorded.run, "--json").out)


def test_the_dry_demo_says_what_would_happen_when(cli, recorded):
    """In order. It makes no folder."""
    answer = cli("demo", recorded.job, "--dry-run")
    assert answer.out.splitlines() == [
        f"tiny: 4 steps of exactly 6 samples, in {recorded.run}-2",
        "4 local nodes with room for a worker each",
        "from step 0: one of them has notice to go in 30 s",
        "from step 1: 2 nodes join",
        "from step 2: a node is killed without notice",
        "at the end: the audit",
        "",
        "dry run: nothing was started, nothing was kept",
    ]
    assert not recorded.run.with_name("run-2").exists()


def test_the_demo_brings_its_job_along(cli, tmp_path):
    """It works from any folder, with the job file that README names."""
    answer = cli("demo", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("demo: 160 steps of exactly 64 samples, in runs/demo\n")
    assert list(tmp_path.iterdir()) == []
    root = Path(__file__).parents[2]
    assert (root / "planner" / "cli" / "demo.yaml").read_bytes() == (root / "jobs" / "demo.yaml").read_bytes()


def test_the_dry_verify_shows_both_histories(cli, job):
    """Also what would be compared. On Ray there are at most as many workers as samples."""
    lines = cli("verify", job, "--history", "2,1", "--steps", "5", "--dry-run").out.splitlines()
    assert lines[:2] == ["fixed    2 workers until step 5", "history  2 workers until step 2, 1 worker until step 5"]
    assert lines[2].startswith("compare  world sizes, ")
    assert "losses within 1e-05" in lines[2]
    assert lines[-1] == END
    arguments = ("verify", job, "--history", "9,1", "--set", "batch.equality=bitwise", "--dry-run", "--json")
    found = json.loads(cli(*arguments, "--ray").out)
    assert found["fixed"] == [{"world_size": 6, "end_step": 12}]
    assert "weights to the last bit" in found["compared"]
