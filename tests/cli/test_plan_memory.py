"""`planner plan --gpu`: what each row needs of a GPU, and `batch.max_micro: auto`."""

import json
import re
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
    assert "! does not fit into l4-24g (24.2 GB)\nTried at 8 GPUs: batch.max_micro: 4 needs " in done.out
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
    """With the nearest three, and what settings would save."""
    done = cli("plan", job, "--gpu", "4g", "--set", "batch.max_micro=auto")
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "one sample does not fit into 4g (4.3 GB): 8 GPUs lack" in said
    assert ". Tried at 8 GPUs: train.activation_checkpointing: selective needs " in said
    assert "; train.activation_checkpointing: true on 15 GPUs (workers.max: 15) need 4.2 GB each (fits)" in said
    assert said.endswith("; 64 GPUs need 6.0 GB each (does not fit)")


def test_settings_are_tried_where_no_row_fits(cli, job):
    """One of them fits. They are measured once on a machine, and bytes are at the row that lacks the least."""
    changed = [part for text in ("batch.max_micro=1", "train.precision=fp32") for part in ("--set", text)]
    command = ("plan", job, "--gpus", "1,2", "--gpu", "14g", *changed)
    done = cli(*command)
    said = "measuring gpus with train.precision: bf16: some seconds, once on this machine"
    assert said in done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("Tried at 2 GPUs: ")]
    assert re.match(r"Tried at 2 GPUs: train.precision: bf16 needs \d+\.\d GB \(does not fit\); .* \(fits\); ", line)
    again = cli(*command, "--json")
    assert again.err == ""
    first, second = (row["memory"] for row in json.loads(again.out))
    assert first["ways_out"] == []
    assert second["ways_out"][0]["change"] == "train.precision: bf16"
    assert [way["fits"] for way in second["ways_out"]].count(True) >= 1
    assert all(way["fits"] == (way["needed_bytes"] <= second["gpu_bytes"]) for way in second["ways_out"])
    # What it says is what a plan with these settings says.
    way = next(way for way in second["ways_out"] if way["fits"])
    settings = [part for setting in way["change"].split(" + ") for part in ("--set", setting.replace(": ", "="))]
    (_, found) = json.loads(cli(*command, *settings, "--json").out)
    assert found["memory"]["needed_bytes"] == way["needed_bytes"]
    assert found["memory"]["fits"]


def test_where_some_rows_fit_nothing_is_tried(cli, job):
    """Rows with more GPUs are a way out. The command that tries the others is named."""
    options = ("--gpu", "l4", "--set", "batch.max_micro=1")
    out = cli("plan", job, "--gpus", "1-8", *options).out
    assert "Tried at" not in out
    assert (
        "! does not fit into l4-24g (24.2 GB). planner plan JOB --gpus 1 --gpu l4-24g tries settings that would fit"
        in out
    )
    assert "no larger one fits, so save memory" not in out
    out = cli("plan", job, "--gpus", "2,8", *options).out
    assert "!" not in out
    auto = cli("plan", job, "--gpus", "1-3", "--gpu", "18g", "--set", "batch.max_micro=auto").out
    assert " ! " in auto
    assert "raise max_micro" not in auto


@pytest.mark.parametrize("micro", ["1", "auto"])
def test_fewer_workers_are_advice_only_where_they_fit(cli, job, micro):
    """Two fit, whether they have a row or not, and one does not."""
    options = ("--gpu", "16g", "--set", "batch.global=8", "--set", f"batch.max_micro={micro}")
    every = json.loads(cli("plan", job, "--gpus", "1-8", *options, "--json").out)
    assert [row["memory"]["fits"] for row in every] == [False] + 7 * [True]
    (last,) = json.loads(cli("plan", job, "--gpus", "8", *options, "--json").out)
    assert last["warnings"] == every[-1]["warnings"]
    assert last["warnings"][0].endswith("communication-bound under FSDP: use fewer workers (2 or more fit)")
    assert "fewer workers (" in " ".join(cli("plan", job, "--gpus", "8", *options).out.split())
    (two,) = json.loads(cli("plan", job, "--gpus", "2", *options, "--json").out)
    assert "fewer workers" not in "".join(two["warnings"])


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


def test_the_caps_of_a_run_with_shorter_samples_are_raised_to_the_longest_one(cli, chats):
    """No group of a run with this data has a cap below it. So costs by lengths are those of a possible plan."""
    (chats.parent / "rates.yaml").write_text(
        "format: 1\nbatch: {global: 64, max_micro: 64, max_tokens: 20}\n"
        "terms:\n  sample_s: {value: 0.1, source: assumed}\n"
    )
    more = ("--gpus", "2", "--rates", chats.parent / "rates.yaml", "--lengths", "--json", *AUTO)
    done = cli("plan", chats, *more)
    assert done.code == 0, done.err
    least = json.loads(cli("plan", chats, "--gpus", "2", "--json", "--set", "batch.max_tokens=300").out)
    assert json.loads(done.out)[0]["digest"] == least[0]["digest"]


def test_with_lengths_memory_is_for_the_longest_sample_of_the_data(cli, chats):
    """Also where only samples are counted. The costs are those of each row's own plan."""
    without = json.loads(cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--json").out)[0]
    done = cli("plan", chats, "--gpus", "1", "--gpu", "40g", "--lengths")
    assert "memory is for samples of at most 300 tokens (the longest of the data)" in done.out
    some = " ".join(cli("plan", chats, "--gpu", "18g", "--lengths", *AUTO).out.split())
    assert "planner plan JOB --lengths --gpus 1 --gpu 18g tries settings that would fit" in some
    assert "--lengths reads the data" not in some
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


# -- the GPUs of a cluster file

CLUSTER = """\
cluster_name: small
max_workers: 6
provider: {type: aws}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0, GPU: 0}, node_config: {}}
  one: {max_workers: 3, node_config: {InstanceType: FIRST}}
  four: {max_workers: 2, resources: {CPU: 32, GPU: 4}, node_config: {InstanceType: SECOND}}
"""


@pytest.fixture
def on_cluster(cli, job, tmp_path):
    """Plans on a cluster with two instance types."""

    def call(first, second, *more):
        (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("FIRST", first).replace("SECOND", second))
        return cli("plan", job, "--gpus", "1,8", "--cluster", "cluster.yaml", "--set", "workers.gpus=1", *more)

    return call


def test_the_gpu_of_a_cluster_file_is_taken(on_cluster):
    """With where it is from. `--gpu` replaces it. Models that are not here do not end the plan."""
    out = on_cluster("g5.xlarge", "g5.12xlarge").out
    assert "\nGPUs: a10g-24g (InstanceType g5.xlarge and g5.12xlarge)\n" in out
    assert "fits: the largest micro-batch that fits into a10g-24g (24.1 GB)" in out
    mixed = on_cluster("p3.2xlarge", "p4d.24xlarge").out
    assert (
        "GPUs: v100-16g or a100-40g (InstanceType p3.2xlarge and p4d.24xlarge). Memory below is that of v100" in mixed
    )
    assert "fits into v100-16g (17.2 GB)" in mixed
    named = on_cluster("g5.xlarge", "g5.12xlarge", "--gpu", "h100").out
    assert "fits into h100-80g" in named
    assert "a10g" not in named
    (one, _) = json.loads(on_cluster("g5.xlarge", "g5.12xlarge", "--json").out)
    assert one["memory"]["gpu"] == "a10g-24g"
    absent = on_cluster("g5.xlarge", "g5.12xlarge", "--set", "model={kind: hf, path: nobody/nothing, context: 8}")
    assert absent.code == 0, absent.err
    assert "memory not known: nobody/nothing is not on this machine" in absent.out


def test_a_gpu_that_a_cluster_file_does_not_name_is_not_guessed(on_cluster):
    """If only some groups name theirs, the others are told. Workers on CPUs need no GPU."""
    out = on_cluster("g5.xlarge", "trn1.32xlarge").out
    assert "\nGPUs of four: not known. --gpu NAME shows what fits\n" in out
    assert "memory of a worker" not in out
    out = on_cluster("g5.xlarge", "g5.12xlarge", "--set", "workers.gpus=0").out
    assert "memory of a worker" not in out
    assert "GPUs: " not in out


def test_auto_on_a_cluster_that_is_too_small_is_told(on_cluster):
    """The rows are there. A run would be refused."""
    done = on_cluster("g4dn.xlarge", "g4dn.12xlarge", "--gpus", "1", "--set", "batch.max_micro=auto")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "batch.max_micro auto: a run would be refused, since one sample does not fit into t4-16g" in said
    assert "planner plan JOB --gpus 1 --gpu t4-16g tries settings that would fit" in said
