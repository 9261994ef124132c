"""`planner plan`: its text for people, and its JSON for scripts."""

import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import yaml
from events import EVENT_S, ended

from planner.base.disk import size_text
from planner.base.text import duration
from planner.plan import BatchSizes, make_plan

KEYS = {
    "world_size",
    "workers_used",
    "global_batch",
    "accumulation_steps",
    "max_micro_batch",
    "step_cost",
    "balanced_step_cost",
    "shares",
    "efficiency",
    "mode",
    "digest",
    "warnings",
    "compute",
    "state_bytes",
    "worker_state_bytes",
    "commit_s",
    "state_unknown",
    "surplus",
}


@pytest.fixture
def demo(job):
    """The tiny job with the demo's batch: 64 samples, at most 8 in a micro-batch, 1 to 8 workers."""
    job.write_text(job.read_text().replace("{global: 6, max_micro: 4}", "{global: 64, max_micro: 8}"))
    return job


def rows(text):
    """Return count -> the row's cells. Two spaces separate columns."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if re.match(r" *\d+  ", line)]
    return {int(row[0]): row[1:] for row in cells}


def counts(answer):
    """The counts of the rows, in order."""
    assert answer.code == 0, answer.err
    return list(rows(answer.out))


def planner(*arguments, **settings):
    """Start a real process, as a shell does."""
    return subprocess.Popen([sys.executable, "-m", "planner.cli", *map(str, arguments)], text=True, **settings)


# -- the table


@pytest.mark.parametrize(
    ("count", "cells"),
    [
        (1, ["1", "1 x 64", "8", "8", "64", "100.0%"]),
        (3, ["3", "1 x 22 + 2 x 21", "8", "3", "22", "97.0%"]),
        (5, ["5", "4 x 13 + 1 x 12", "7", "2", "13", "98.5%"]),
        (7, ["7", "1 x 10 + 6 x 9", "5", "2", "10", "91.4%"]),
        (8, ["8", "8 x 8", "8", "1", "8", "100.0%"]),
        (9, ["9", "1 x 8 + 8 x 7", "8", "1", "8", "88.9%", "8 workers are just as fast"]),
    ],
)
def test_a_row_says_how_the_batch_is_split(cli, demo, count, cells):
    """Used workers, split, micro-batch, rounds, cost, efficiency and notes, for counts worked out by hand."""
    assert rows(cli("plan", demo, "--gpus", count).out)[count] == cells


def test_the_columns_have_names(cli, demo):
    """The header stands above the rows. It names the notes only if there are any."""
    columns = ["GPUs", "used", "split", "micro-batch", "rounds", "cost", "efficiency"]
    assert cli("plan", demo).out.splitlines()[3].split() == columns
    assert cli("plan", demo, "--gpus", "9").out.splitlines()[3].split() == [*columns, "notes"]


def test_the_first_line_says_what_is_planned(cli, demo):
    """Job name, global batch and the largest micro-batch."""
    assert cli("plan", demo).out.splitlines()[0] == "tiny: global batch 64, at most 8 in a micro-batch"


def test_more_gpus_than_samples_leave_some_idle(cli, demo):
    """The row says how many work, and its notes say why, on the same line."""
    line = next(line for line in cli("plan", demo, "--gpus", "100").out.splitlines() if line.startswith(" 100"))
    assert "64 x 1 + 36 x 0" in line
    assert "36 of 100 workers idle: a global batch of 64 feeds at most 64" in line
    assert line.endswith("64 workers are just as fast")


def test_no_line_ends_in_blanks(cli, demo):
    """Output to a pipe or a file has no padding."""
    assert not [line for line in cli("plan", demo, "--gpus", "1-100").out.splitlines() if line != line.rstrip()]


# -- the counts


def test_without_gpus_the_jobs_own_range_is_shown(cli, demo):
    """From workers.min to workers.max, both included."""
    assert counts(cli("plan", demo)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert counts(cli("plan", demo, "--set", "workers.min=3", "--set", "workers.max=5")) == [3, 4, 5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1-16", list(range(1, 17))),
        ("7", [7]),
        ("3,5,7", [3, 5, 7]),
        ("1-4,8", [1, 2, 3, 4, 8]),
        ("8,1-4", [8, 1, 2, 3, 4]),
        ("3,1,3,2-4", [3, 1, 2, 4]),
        ("5-5", [5]),
        ("1 - 2, 4", [1, 2, 4]),
        ("65536", [65536]),
    ],
)
def test_counts_come_in_the_order_written_each_once(cli, demo, text, expected):
    """Single counts, ranges and lists of both. A count that is named twice is one row."""
    assert counts(cli("plan", demo, "--gpus", text)) == expected


# -- the size of a commit

LLAMA = {
    "model": {"kind": "hf", "path": "", "context": 24},
    "data": {"kind": "chat", "path": "chat.jsonl"},
    "objective": {"kind": "sft"},
}


def hf_job(job, path, **model):
    """The tiny job with a transformers model."""
    spec = yaml.safe_load(job.read_text())
    sections = {**LLAMA, "model": {**LLAMA["model"], "path": str(path), **model}}
    job.write_text(yaml.safe_dump({**spec, **sections}))
    return job


def llama_files(folder, family="llama"):
    """The files of a Llama with one layer: 24 + 24 + 4 + 16 = 68 numbers in four tensors."""
    shapes = {
        "model.embed_tokens.weight": [6, 4],
        "lm_head.weight": [6, 4],
        "model.norm.weight": [4],
        "model.layers.0.self_attn.q_proj.weight": [4, 4],
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder


def block(answer):
    """The lines below the table."""
    assert answer.code == 0, answer.err
    return answer.out.split("\n\n")[2].splitlines()


def test_the_state_is_below_the_table(cli, demo):
    """With the least and the greatest count, in any order. A third of the rows is more than a third of the state."""
    found = json.loads(cli("plan", demo, "--gpus", "1,3", "--json").out)
    state, third = found[0]["state_bytes"], found[1]["worker_state_bytes"]
    assert found[0]["worker_state_bytes"] == state > third > state / 3
    assert found[0]["commit_s"] is None
    lines = block(cli("plan", demo, "--gpus", "3,1"))
    parts = f"{size_text(state)} at 1 GPU, {size_text(third)} at 3 GPUs"
    assert lines[0].startswith(f"state {size_text(state)}: ")
    assert lines[0].endswith(" trained parameters in float32, with AdamW state")
    assert lines[1:] == [f"per worker at most {parts}, and host memory for up to 4 copies of that (checkpoint.memory)"]


def test_the_storages_rate_tells_after_how_long_a_commit_is_durable(cli, demo):
    """At 10^9 bytes per second for each GB/s, all workers together, so the same at each count."""
    plans = json.loads(cli("plan", demo, "--gpus", "1,3", "--storage-gbps", "0.5", "--json").out)
    assert [plan["commit_s"] for plan in plans] == [pytest.approx(plans[0]["state_bytes"] / 5e8)] * 2
    (line,) = block(cli("plan", demo, "--storage-gbps", "1e-6"))[2:]
    assert line == f"a commit is durable after about {duration(plans[0]['state_bytes'] / 1e3)} at 1e-06 GB/s"


@pytest.mark.parametrize(("rate", "time"), [("1e6", "less than 0.1 s"), ("1e-9", "about 39 h")])
def test_the_time_of_a_commit_is_one_that_people_read(cli, demo, rate, time):
    """At any rate. `4.7e-09 s` is none."""
    line = block(cli("plan", demo, "--storage-gbps", rate))[-1]
    assert line == f"a commit is durable after {time} at {float(rate):g} GB/s"


def test_less_than_a_byte_per_second_is_no_rate(cli, demo):
    """The time would be beyond the range of JSON's numbers."""
    answer = cli("plan", demo, "--storage-gbps=1e-320", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert ", less than one byte per second. Write a number above 0, " in answer.err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
def test_a_storage_rate_is_a_number_above_zero(cli, demo, rate):
    """The message says what was written."""
    answer = cli("plan", demo, f"--storage-gbps={rate}")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"planner: --storage-gbps is {rate}. Write a number above 0, ")


@pytest.mark.parametrize(
    ("optimizer", "end"),
    [
        ("{kind: sgd, lr: 0.1}", "in float32"),
        ("{kind: sgd, lr: 0.1, momentum: 0.9}", "in float32, with SGD momentum state"),
        ("{kind: rmsprop, lr: 0.1}", "in float32, with RMSprop state"),
    ],
)
def test_the_optimizer_is_named(cli, demo, optimizer, end):
    """Only if it has state."""
    assert block(cli("plan", demo, "--set", f"train.optimizer={optimizer}"))[0].endswith(f" trained parameters {end}")


def test_a_models_files_tell_its_size(cli, job, tmp_path):
    """Without transformers: weights are trained in float32, whatever type the files have."""
    arguments = ("plan", hf_job(job, llama_files(tmp_path / "llama")), "--gpus", "1")
    assert block(cli(*arguments))[0] == "state 832 bytes: 68 trained parameters in float32, with AdamW state"
    adapters = hf_job(job, tmp_path / "llama", lora={"rank": 2})
    assert ": 16 trained parameters in float32" in block(cli("plan", adapters, "--gpus", "1"))[0]


@pytest.mark.parametrize(
    ("family", "path", "reason"),
    [
        ("gpt2", "model", "the model's files do not tell. See planner run JOB --dry-run, which builds the model"),
        ("llama", "nobody/nothing", "nobody/nothing is not on this machine. Run this on one that has it"),
        (
            "llama",
            "./nowhere",
            (
                "model.path: ./nowhere (relative to HERE, where planner runs): no such folder. "
                "Write the folder that has config.json"
            ),
        ),
    ],
)
def test_a_size_that_is_not_known_has_a_reason(cli, job, tmp_path, monkeypatch, family, path, reason):
    """The plan is shown all the same."""
    reason = reason.replace("HERE", str(tmp_path))
    llama_files(tmp_path / "model", family)
    monkeypatch.chdir(tmp_path)
    answer = cli("plan", hf_job(job, path), "--gpus", "1")
    assert list(rows(answer.out)) == [1]
    assert block(answer) == [f"state not known: {reason}"]
    (plan,) = json.loads(cli("plan", job, "--gpus", "1", "--json").out)
    assert [plan[key] for key in ("state_bytes", "worker_state_bytes", "commit_s")] == [None] * 3
    assert plan["state_unknown"] == reason


def test_only_your_own_loop_knows_its_model(cli, own_job):
    """Nothing of it is run."""
    (line,) = block(cli("plan", own_job, "--gpus", "1", "--storage-gbps", "1"))
    assert line.startswith("state not known: your own loop makes the model. After the first commit, see ")


def test_how_workers_compute_is_above_the_table(cli, demo, own_job):
    """By the settings of the job. The object in the JSON is the same at each count."""
    setting = ("--set", "train.precision=bf16", "--set", "train.compile=blocks")
    text = "compute: bf16, sdpa attention, torch's kernels, blocks compiled, activations kept"
    assert cli("plan", demo, *setting).out.split("\n\n")[0].splitlines()[-1] == text
    found = [plan["compute"] for plan in json.loads(cli("plan", demo, *setting, "--json").out)]
    assert found == [found[0]] * 8
    assert (found[0]["precision"], found[0]["attention"], found[0]["compile"]) == ("bf16", ["sdpa"], "blocks")
    assert "\ncompute: your own loop decides it\n" in cli("plan", own_job).out


@pytest.mark.parametrize(
    ("gpus", "attention"), [(1, "flash attention where it is installed (else sdpa)"), (0, "sdpa attention")]
)
def test_attention_is_told_for_the_workers_that_the_job_asks_for(cli, demo, gpus, attention):
    """Not for this machine, which does not train."""
    hf = ("model={kind: hf, path: m, context: 8}", "data={kind: chat, path: rows}", "objective=sft")
    settings = (*hf, "train.precision=bf16", f"workers.gpus={gpus}")
    out = cli("plan", demo, *(part for setting in settings for part in ("--set", setting))).out
    assert f"\ncompute: bf16, {attention}, torch's kernels" in out


@pytest.mark.parametrize(("context", "says"), [(512, "micro-batch 1 (512 tokens) is communication-bound"), (8_000, "")])
def test_long_samples_are_work_enough(cli, demo, context, says):
    """In the table and in the JSON."""
    settings = ("--gpus", "2-3", "--set", "batch.max_micro=1", "--set", f"model.context={context}")
    for text in (cli("plan", demo, *settings).out, cli("plan", demo, *settings, "--json").out):
        assert ("communication-bound" in text) == bool(says)
        assert says in text


NOTE = "This job runs on 2 to 6 workers (workers.min, workers.max, batch.global). Other rows are what-if."


@pytest.mark.parametrize(("text", "noted"), [("2-6", False), ("1-6", True), ("2-7", True), ("4", False), ("1", True)])
def test_counts_that_the_job_never_uses_are_noted(cli, job, text, noted):
    """The job runs on two to six workers. Other counts can be asked for, and a note says so."""
    answer = cli("plan", job, "--gpus", text, "--set", "workers.min=2")
    assert answer.code == 0
    assert (answer.out.splitlines()[-1] == NOTE) is noted
    assert ("what-if" in answer.out) is noted


def test_set_changes_the_plan_and_not_the_file(cli, demo):
    """The first line and the split show the override."""
    before = demo.read_text()
    answer = cli("plan", demo, "--set", "batch.global=10", "--set", "batch.max_micro=2", "--gpus", "3")
    assert answer.out.startswith("tiny: global batch 10, at most 2 in a micro-batch\n")
    assert rows(answer.out)[3][:5] == ["3", "1 x 4 + 2 x 3", "2", "2", "4"]
    assert demo.read_text() == before


# -- JSON


@pytest.mark.parametrize(("global_batch", "cap"), [(64, 8), (61, 3), (7, 100), (1, 1)])
def test_the_json_agrees_with_itself_and_with_the_plan_room(cli, demo, global_batch, cap):
    """At 1 to 64 GPUs: the keys are the documented ones, shares add up, and cost, rounds and efficiency follow."""
    overrides = ("--set", f"batch.global={global_batch}", "--set", f"batch.max_micro={cap}")
    answer = cli("plan", demo, "--gpus", "1-64", "--json", *overrides)
    plans = json.loads(answer.out)
    assert [plan["world_size"] for plan in plans] == list(range(1, 65))
    for plan in plans:
        world_size, cost = plan["world_size"], plan["step_cost"]
        assert set(plan) == KEYS
        assert plan["global_batch"] == global_batch
        assert sum(workers * samples for workers, samples in plan["shares"]) == global_batch
        assert sum(workers for workers, _ in plan["shares"]) == world_size
        assert sum(workers for workers, samples in plan["shares"] if samples) == plan["workers_used"]
        assert cost == max(samples for _, samples in plan["shares"]) == -(-global_batch // world_size)
        assert plan["accumulation_steps"] == -(-cost // cap)
        assert plan["max_micro_batch"] == -(-cost // plan["accumulation_steps"]) <= cap
        assert plan["efficiency"] == pytest.approx(global_batch / (world_size * cost))
        assert plan["mode"] == "balanced"
        assert ("idle" in " ".join(plan["warnings"])) == (world_size > global_batch)
        same = make_plan(BatchSizes(global_batch=global_batch, max_micro=cap), world_size)
        assert plan["digest"] == same.digest
    assert len({plan["digest"] for plan in plans}) == 64


def test_the_json_is_all_there_is(cli, demo):
    """stdout is one JSON document, without heading or note, and stderr is empty."""
    answer = cli("plan", demo, "--json", "--gpus", "100")
    assert answer.err == ""
    assert [plan["world_size"] for plan in json.loads(answer.out)] == [100]


# -- the streams


def test_stdout_has_the_results_and_stderr_nothing(cli, demo):
    """A plan prints nothing on stderr and leaves no file."""
    before = set(demo.parent.rglob("*"))
    answer = cli("plan", demo)
    assert (answer.code, answer.err) == (0, "")
    assert set(demo.parent.rglob("*")) == before


def test_a_wrong_plan_says_so_on_stderr_alone(cli, demo):
    """No part of a table precedes the error."""
    answer = cli("plan", demo, "--gpus", "3,x")
    assert (answer.code, answer.out) == (2, "")
    found = "--gpus '3,x': 'x' is not a count from 1 to 65536"
    assert answer.err == f"planner: {found}. Write counts such as 1-16, 7 or 3,5,7\n"


@pytest.mark.process
@pytest.mark.parametrize("arguments", [("--gpus", "1-20000"), ("--gpus", "1-20000", "--json")])
def test_a_reader_that_leaves_early_is_no_error_to_report(demo, arguments):
    """`planner plan ... | head -1`: far more output than a pipe holds, and nothing on stderr."""
    process = planner("plan", demo, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(EVENT_S)


@pytest.mark.process
def test_a_full_disk_is_a_sentence(demo):
    """Output that cannot be written ends with exit code 1, and with the reason."""
    with Path("/dev/full").open("w") as full:
        process = planner("plan", demo, stdout=full, stderr=subprocess.PIPE)
        code, _, error = ended(process)
    assert code == 1
    assert error == "planner: [Errno 28] No space left on device\n"


@pytest.mark.process
def test_without_a_stdout_nothing_breaks(demo):
    """Some schedulers close stdout."""
    command = [sys.executable, "-m", "planner.cli", "plan", str(demo)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def on_a_terminal(columns, *arguments):
    """What a command writes to a terminal of that width, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", with_codes(columns, *arguments))


def with_codes(columns, *arguments, **settings):
    """What a command writes to a terminal of that width, with its escape codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **settings}
    environment = {name: value for name, value in environment.items() if name != "NO_COLOR" or name in settings}
    process = planner(*arguments, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # how Linux says that the other end has gone
    finally:
        os.close(ours)
    assert process.wait(EVENT_S) == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.process
def test_a_header_is_bold_from_its_first_letter(demo):
    """The empty line before it is plain."""
    shown = with_codes(80, "plan", demo, "--gpus", "5")
    assert re.search(r"\n\n\x1b\[1mGPUs .*\x1b\[0m\n", shown)
    assert shown.count("\x1b") == 2


@pytest.mark.process
@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_without_colours_gets_no_escape_codes(demo, setting):
    """Such as that of an editor. The text is the same."""
    plain = with_codes(80, "plan", demo, "--gpus", "5", **setting)
    assert plain == on_a_terminal(80, "plan", demo, "--gpus", "5")


@pytest.mark.process
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_narrow_terminal_shows_everything(demo, columns):
    """Rows stay whole, and notes that do not fit follow below, broken between words."""
    shown = on_a_terminal(columns, "plan", demo, "--gpus", "5,9,100")
    found = rows(shown)
    assert found[5] == ["5", "4 x 13 + 1 x 12", "7", "2", "13", "98.5%"]
    assert found[100][:6] == ["64", "64 x 1 + 36 x 0", "1", "1", "1", "64.0%"]
    text = " ".join(shown.split())
    assert "36 of 100 workers idle: a global batch of 64 feeds at most 64; micro-batch 1 (" in text
    assert "8 workers are just as fast" in text
    assert "Other rows are what-if." in text
    assert "…" not in shown


@pytest.mark.process
def test_notes_below_a_row_keep_within_the_terminal(demo):
    """No line of a note passes 80 columns."""
    shown = on_a_terminal(80, "plan", demo, "--gpus", "100")
    notes = [line for line in shown.splitlines() if line.startswith("      ")]
    assert len(notes) == 3
    assert max(map(len, notes)) <= 80


@pytest.mark.process
@pytest.mark.parametrize("columns", [80, 120, 200])
def test_every_line_fits_the_terminal(demo, columns):
    """The heading, the rows with their notes, and the note below the table."""
    shown = on_a_terminal(columns, "plan", demo, "--gpus", "5,9,100")
    assert max(map(len, shown.splitlines())) <= columns


@pytest.mark.process
def test_notes_wrap_in_their_column_if_it_is_wide_enough(demo):
    """At 120 columns, the later lines of a note begin below its first line."""
    header, *lines = on_a_terminal(120, "plan", demo, "--gpus", "100").splitlines()[3:8]
    at = header.index("notes")
    assert lines[0][at - 2 : at] == "  "
    assert [line[:at].strip() for line in lines[1:]] == [""] * 3
    text = " ".join(line[at:] for line in lines)
    assert text.startswith("36 of 100 workers idle: a global batch of 64 feeds at most 64; ")
    assert text.endswith("64 workers are just as fast")


def lengths_of(answer):
    """What `--lengths --json` says of the first count."""
    assert answer.code == 0, answer.err
    return json.loads(answer.out)[0]["lengths"]


def test_lengths_are_those_of_the_steps_that_the_job_has(demo, cli):
    """A short job has fewer steps than are looked at, and a long one has more."""
    looked_at = [
        lengths_of(cli("plan", demo, "--gpus", "2", "--lengths", "--json", "--set", f"train.steps={steps}"))["steps"]
        for steps in (1, 3, 9999)
    ]
    assert looked_at == [1, 3, 200]


def test_lengths_advise_max_tokens_only_where_it_saves_something(demo, cli):
    """Windows of a text are equally long, so only an uneven split costs more than the tokens."""
    even, uneven = (cli("plan", demo, "--lengths", "--gpus", count).out for count in ("4", "50"))
    assert "so batch.max_tokens would save little" in even
    assert "write batch.max_tokens: with" in uneven


def test_lengths_refuse_what_the_run_refuses(demo, cli):
    """The error names the longest sample of all data, so the value that it advises fits."""
    asked = ("plan", demo, "--lengths", "--gpus", "2", "--set")
    refused, good = cli(*asked, "batch.max_tokens=15"), cli(*asked, "batch.max_tokens=16")
    assert (refused.code, refused.out) == (2, "")
    assert "has 16 tokens, the most of all" in refused.err
    assert "Write at least batch.max_tokens: 16" in refused.err
    assert "by length" in good.out


@pytest.mark.process
def test_the_module_and_the_console_script_are_the_same(demo, cli):
    """`python -m planner.cli` prints the same as `planner`."""
    process = planner("plan", demo, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ended(process) == (0, cli("plan", demo).out, "")
