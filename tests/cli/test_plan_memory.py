"""`planner plan --gpu`: what each row needs of a GPU, and `batch.max_micro: auto`."""

import json
import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = """
name: gpus
model: {kind: gpt, layers: 24, width: 2048, heads: 16, context: 2048}
data: {kind: text, path: corpus}
batch: {global: 64, max_micro: 8}
train: {steps: 10, optimizer: {kind: adamw, lr: 1.0e-4}, precision: bf16}
workers: {min: 1, max: 8}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def columns(out):
    """The last two cells of each row."""
    rows = [line.split("  notes")[0] for line in out.splitlines()]
    begin = next(place for place, row in enumerate(rows) if row.startswith("GPUs"))
    return rows[begin], [row for row in rows[begin + 1 :] if row[:4].strip().isdigit()]


def test_a_table_says_what_fits(cli, job):
    """1.2 B parameters with fp32 weights, gradients and AdamW state take 19 GB, so one L4 is too small."""
    done = cli("plan", job, "--gpus", "1,2,8", "--gpu", "l4")
    header, rows = columns(done.out)
    assert header.split()[-2:] == ["memory", "fits"]
    assert ["!" in row for row in rows] == [True, True, True]
    assert "! does not fit into l4-24g (24.2 GB)" in done.out
    assert "memory of a worker at 1 GPU: " in done.out
    assert "fits: the largest micro-batch that fits into l4-24g (24.2 GB) and saves a round" in done.out
    assert "measuring what gpus needs of memory, without a device: some seconds, once on this machine" in done.err
    again = cli("plan", job, "--gpus", "1,2,8", "--gpu", "h100")
    assert again.err == ""
    assert not any("!" in row for row in columns(again.out)[1])


def test_json_has_bytes(cli, job):
    """By what they are for. They add up to what is needed."""
    (found,) = json.loads(cli("plan", job, "--gpus", "2", "--gpu", "80g", "--json").out)
    memory = found["memory"]
    assert found["memory_unknown"] == ""
    assert (memory["gpu"], memory["gpu_bytes"], memory["fits"]) == ("80g", 80 * 2**30, True)
    assert sum(memory["items"].values()) == memory["needed_bytes"]
    assert 1 <= memory["largest_micro_batch"] <= 32


def test_auto_takes_what_fits_in_each_row(cli, job):
    """More GPUs hold less of the state each, so more samples fit."""
    done = cli("plan", job, "--gpus", "1-8", "--gpu", "40g", "--set", "batch.max_micro=auto", "--json")
    found = json.loads(done.out)
    assert [each["max_micro_batch"] for each in found] == [each["memory"]["largest_micro_batch"] for each in found]
    assert all(each["memory"]["fits"] for each in found)
    assert all(each["accumulation_steps"] * each["max_micro_batch"] >= 64 / each["world_size"] for each in found)


def test_auto_without_a_gpu_says_what_is_assumed(cli, job):
    """The table cannot know."""
    out = cli("plan", job, "--set", "batch.max_micro=auto").out
    assert "as many as fit in a micro-batch" in out
    assert "The table assumes that a share fits whole. planner plan JOB --gpu NAME shows what fits" in " ".join(
        out.split()
    )


def test_auto_that_fits_nowhere_is_refused(cli, job):
    """With the nearest three, and the ways out."""
    done = cli("plan", job, "--gpu", "4g", "--set", "batch.max_micro=auto")
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "one sample does not fit into 4g (4.3 GB): 8 GPUs lack" in said
    assert "Try, in this order: train.activation_checkpointing: selective, " in said


def test_a_gpu_that_is_not_known_is_refused(cli, job):
    """With what there is."""
    done = cli("plan", job, "--gpu", "tpu")
    assert done.code == 2
    assert "GPU tpu: not known. Write one of t4-16g" in done.err


def test_a_loop_of_ones_own_is_not_measured(cli):
    """The rest of the table is there."""
    out = cli("plan", ROOT / "jobs" / "own_loop.yaml", "--gpu", "l4").out
    assert "memory not known: your own loop makes the model" in out


@pytest.mark.process
def test_what_was_measured_before_needs_no_torch(cli, job):
    """So a plan with memory is as fast as one without."""
    cli("plan", job, "--gpu", "l4")
    code = (
        "import atexit, sys; from planner.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); sys.argv = ['planner', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", str(job), "--gpu", "l4"], capture_output=True, text=True, check=True
    )
    assert "memory of a worker at 1 GPU" in done.stdout
    assert not {"torch", "numpy", "ray", "transformers"} & set(done.stderr.split())


def test_a_gpu_of_a_price_list_need_not_be_known(cli, job, tmp_path):
    """Its dollars are shown, and why its memory is not."""
    (tmp_path / "prices.yaml").write_text("gpus: {Gaudi: {on_demand: 2}}")
    (tmp_path / "rates.yaml").write_text(
        "format: 1\nbatch: {global: 64, max_micro: 8}\nterms:\n  sample_s: {value: 0.1, source: assumed}\n"
    )
    done = cli("plan", job, "--gpus", "2", "--rates", "rates.yaml", "--prices", "prices.yaml", "--gpu", "Gaudi")
    assert done.code == 0, done.err
    assert "$/step" in done.out
    assert "memory not known: planner does not know the GPU Gaudi" in done.out


# -- by length


@pytest.fixture
def chats(job):
    """A job of conversations, of which the longest has 300 tokens."""
    rows = [{"prompt": "a" * 50, "completion": "b" * (249 - 5 * number)} for number in range(40)]
    (job.parent / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = f"{{kind: chat, path: {job.parent / 'rows.jsonl'}}}\nobjective: sft"
    job.write_text(JOB.replace("{kind: text, path: corpus}", data).replace("max_micro: 8", "max_micro: auto"))
    return job


AUTO = ("--set", "batch.max_tokens=auto")


def test_auto_tokens_are_what_fits_in_each_row(cli, chats):
    """More GPUs hold less of the state each, so more tokens fit, up to a share of full samples."""
    done = cli("plan", chats, "--gpus", "1,2,4,32", "--gpu", "40g", *AUTO)
    header, rows = columns(done.out)
    assert header.endswith("memory  fits, tokens  full rounds")
    cells = [[int(cell.replace(",", "")) for cell in (row.split()[0], *row.split()[-2:])] for row in rows]
    most = [tokens for _, tokens, _ in cells]
    assert most == [*sorted(most[:3]), 2 * 2048]
    assert all(tokens % 64 == 0 for tokens in most)
    rounds = [ceil(ceil(64 / (tokens // 2048)) / count) for count, tokens, _ in cells]
    assert [shown for _, _, shown in cells] == rounds
    assert "as many tokens as fit in a micro-batch" in done.out
    assert "fits, tokens: the largest batch.max_tokens that fits into 40g (42.9 GB) and may save a round" in done.out
    assert "full rounds: of a step whose samples all have 2,048 tokens" in done.out
    (found, *_) = json.loads(cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--json", *AUTO).out)
    assert found["memory"]["largest_max_tokens"] == most[0]
    assert (found["memory"]["full_rounds"], found["memory"]["longest_sample_tokens"]) == (rounds[0], 2048)


def test_the_number_of_auto_may_be_written(cli, chats):
    """The same plan, and the same largest cap. A higher one does not fit."""
    auto = json.loads(cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--json", *AUTO).out)[0]
    most = auto["memory"]["largest_max_tokens"]
    for tokens, fits in ((most, True), (most + 64, False)):
        more = ("--set", f"batch.max_tokens={tokens}", "--json")
        (found,) = json.loads(cli("plan", chats, "--gpus", "1", "--gpu", "40g", *more).out)
        assert (found["digest"] == auto["digest"], found["memory"]["fits"]) == (fits, fits)
        assert found["memory"]["largest_max_tokens"] == most


def test_with_lengths_memory_is_for_the_longest_sample_of_the_data(cli, chats):
    """Also where only samples are counted. The costs are those of each row's own plan."""
    without = json.loads(cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--json").out)[0]
    done = cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--lengths")
    assert "memory is for samples of at most 300 tokens (the longest of the data)" in done.out
    more = ("--gpus", "1", "--gpu", "40g", "--lengths", "--json")
    found = json.loads(cli("plan", chats, *more).out)[0]
    assert found["memory"]["largest_micro_batch"] > without["memory"]["largest_micro_batch"]
    assert found["lengths"]["padded"]["rounds"] == found["accumulation_steps"]
    by_length = json.loads(cli("plan", chats, *more, *AUTO).out)[0]
    assert by_length["memory"]["longest_sample_tokens"] == 300
    assert by_length["memory"]["full_rounds"] >= by_length["lengths"]["by_length"]["rounds"]


def test_auto_tokens_without_a_gpu_say_what_is_assumed(cli, chats):
    """The table cannot know."""
    out = " ".join(cli("plan", chats, *AUTO).out.split())
    assert "batch.max_tokens auto: each worker group computes what fits into its GPUs. The table assumes" in out
    limited = cli("plan", chats, *AUTO, "--set", "batch.max_micro=4").out
    assert "as many tokens as fit and at most 4 samples in a micro-batch" in limited
    number = cli("plan", chats, "--set", "batch.max_tokens=4096").out
    assert "global batch 64, at most 4,096 tokens in a micro-batch" in number


def test_auto_tokens_that_fit_nowhere_are_refused(cli, chats):
    """The setting is named."""
    done = cli("plan", chats, "--gpu", "4g", *AUTO)
    assert done.code == 2
    assert "batch.max_tokens auto: one sample does not fit into 4g (4.3 GB): 8 GPUs lack" in " ".join(done.err.split())


def test_lengths_of_windows_are_those_of_the_context(cli, job):
    """No length is taken for memory, and nothing new is said."""
    (job.parent / "corpus").write_text("the quick brown fox " * 2000)
    job.write_text(JOB.replace("path: corpus", f"path: {job.parent / 'corpus'}"))
    out = cli("plan", job, "--gpus", "2", "--gpu", "80g", "--lengths").out
    assert "memory of a worker at 2 GPUs" in out
    assert "of the data" not in out


def test_with_rates_auto_tokens_are_those_of_the_measured_run(cli, chats, tmp_path):
    """At each count. One that it did not have takes those of the next smaller one."""
    measured = [
        f"{{world_size: {count}, steps: 9, seconds: 1, max_micro: 64, max_tokens: {tokens}}}"
        for count, tokens in ((2, 5000), (4, 7000))
    ]
    (tmp_path / "rates.yaml").write_text(
        "format: 1\nbatch: {global: 64, max_micro: 64, max_tokens: 9000}\n"
        f"terms:\n  sample_s: {{value: 0.1, source: assumed}}\nmeasured: [{', '.join(measured)}]\n"
    )
    asked = ("--gpus", "2,3,4", "--rates", tmp_path / "rates.yaml", *AUTO)
    digests = [each["digest"] for each in json.loads(cli("plan", chats, *asked, "--json").out)]
    for digest, count, tokens in zip(digests, (2, 3, 4), (5000, 5000, 7000), strict=True):
        written = cli("plan", chats, "--gpus", count, "--set", f"batch.max_tokens={tokens}", "--json").out
        assert json.loads(written)[0]["digest"] == digest
    assert (
        "batch.max_tokens auto: the table has the micro-batches of the measured run" in cli("plan", chats, *asked).out
    )
