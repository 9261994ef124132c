"""Files of strangers that once gave a traceback, hung or used up the memory: read, or refused in one sentence."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from planner.base import disk
from planner.cli import app
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.job_folders import JobFolders, check_here
from planner.data.model_folder import ModelFolder
from planner.data.open import open_dataset
from planner.errors import ClusterError, DataError, JobError, PlannerError, RecipeError, StoreError, UserError
from planner.files import read_job
from planner.files.cluster_file import read_cluster
from planner.job import Job
from planner.recipes import RecipeOptions, read_recipe
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

WORDS = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1, "b": 2}, "unk_token": "<unk>"},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 64,
}
TRL = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 2\n"


def require_a_sentence(error):
    """What a reader may say: not much, and nothing that steers a terminal."""
    text = str(error)
    assert 0 < len(text) <= 500
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.fixture
def model(tmp_path):
    """A sound folder, to be harmed."""
    folder = tmp_path / "model"
    folder.mkdir()
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b", "unk_token": "<unk>"}
    for name, content in (("config", LLAMA), ("tokenizer", WORDS), ("tokenizer_config", special)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "chat.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 50)
    return folder


def job_of(folder, data="chat.jsonl", **settings):
    """A job that trains that model."""
    return Job.model_validate(
        {
            "name": "j",
            "model": {"kind": "hf", "path": str(folder), "context": 32, "weights": "random", **settings},
            "data": {"kind": "chat", "path": str(folder.parent / data)},
            "objective": "sft",
            "batch": {"global": 4, "max_micro": 2},
            "train": {"steps": 2, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
        }
    )


def start(job):
    """All that the driver and a worker do with a job's model and data before they train."""
    from planner.train.models.hf import build_on_meta

    check_here(job)
    folders = JobFolders.of(job, ModelFolder.find)
    folders.fingerprint()
    build_on_meta(folders.model)
    dataset = open_dataset(job.data, job.model)
    return [dataset.sample(row) for row in range(dataset.num_rows)]


ROPE = {"rope_type": "linear", "factor": 2.0}
CONFIGS = {
    "architectures of a number": {"architectures": 5},
    "a factor of words": {"rope_parameters": {**ROPE, "factor": "abc"}},
    "a factor that is not a number": {"rope_parameters": {**ROPE, "factor": float("nan")}},
    "a factor without end": {"rope_parameters": {**ROPE, "factor": float("inf")}},
    "a factor in a list": {"rope_parameters": {**ROPE, "factor": [1]}},
    "a factor of escape codes": {"rope_parameters": {**ROPE, "factor": "\x1b[31m"}},
    "odd original positions": {"rope_parameters": {**ROPE, "original_max_position_embeddings": "x"}},
    "positions without end": {"max_position_embeddings": 10**400},
    "an escape code": {"model_type": "\x1b[31m"},
    "a type of 100 kB": {"model_type": "x" * 100_000},
    "a million layers": {"num_hidden_layers": 10**9},
    "sizes of a wrong type": {"hidden_size": "x"},
}


@pytest.mark.parametrize("change", CONFIGS.values(), ids=CONFIGS)
def test_an_odd_configuration_is_refused(model, change, capfd):
    """And nothing of it reaches the terminal as it is."""
    (model / "config.json").write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(UserError) as raised:
        start(job_of(model))
    require_a_sentence(raised.value)
    assert "\x1b" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "..", "\x1b[31m"])
def test_an_index_that_names_no_file_is_refused(model, name):
    """A NUL, or half a character."""
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(UserError, match="is not a file in its folder") as raised:
        check_here(job_of(model, weights="pretrained"))
    require_a_sentence(raised.value)


TOKENIZERS = {
    "a charsmap that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "an empty pattern": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
    "a template of unknown tokens": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "zzz", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("change", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_tokenizer_that_makes_its_library_panic_is_refused(model, change):
    """What Rust raises is no `Exception`; a tokenizer that the library takes all the same makes samples."""
    (model / "tokenizer.json").write_text(json.dumps({**WORDS, **change}))
    try:
        assert start(job_of(model))
    except DataError as error:
        require_a_sentence(error)


def test_a_panic_is_an_error_of_ours(model, capfd):
    """Surely: this one panics while it is loaded. Rust's own lines about it do not reach the terminal."""
    (model / "tokenizer.json").write_text(json.dumps({**WORDS, **TOKENIZERS["a charsmap that is none"]}))
    with pytest.raises(DataError, match=r"the tokenizer of .* cannot be loaded.*transformers: Precompiled"):
        start(job_of(model))
    assert "panicked" not in capfd.readouterr().err
    os.write(2, b"here again")
    assert capfd.readouterr().err == "here again"


def test_an_empty_chat_template_is_refused_in_a_sentence(model):
    """It writes nothing, so there is nothing to learn."""
    (model / "chat_template.jinja").write_text("")
    (model.parent / "chat.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n"
    )
    with pytest.raises(DataError) as raised:
        start(job_of(model))
    require_a_sentence(raised.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_link_out_of_a_models_folder_is_not_followed(model, name):
    """As docs/security.md says."""
    (model / name).rename(model.parent / "elsewhere")
    (model / name).symlink_to(model.parent / "elsewhere")
    with pytest.raises(UserError, match="a link that leads out of the model's folder"):
        start(job_of(model))


def pipe(place):
    os.mkfifo(place)


def device(place):
    place.symlink_to("/dev/zero")


def bound(place):
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(place.parent):  # a socket's path is short
        listener.bind(place.name)


def endless(place):
    """As long as no memory is."""
    with place.open("wb") as stream:
        stream.truncate(2**40)


NO_FILES = [pipe, device, bound, endless]


@pytest.mark.parametrize("put", NO_FILES)
def test_pipes_devices_and_endless_files_are_refused(put, tmp_path, model, monkeypatch):
    """By every reader: none waits for a pipe, none reads until the memory is full."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "x"
    put(place)
    readers = [
        (lambda: read_job(place), JobError),
        (lambda: read_cluster(place), ClusterError),
        (lambda: read_recipe(str(place)), RecipeError),
        (lambda: start(job_of(model, data="x")), DataError),
        (lambda: start(job_of(model, chat_template=str(place))), DataError),
    ]
    for read, kind in readers:
        with pytest.raises(kind) as raised:
            read()
        require_a_sentence(raised.value)


@pytest.mark.parametrize("put", NO_FILES)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_no_pipe_and_no_device_is_read_in_a_models_folder(put, name, model, monkeypatch):
    """Nor a file as long as no memory is."""
    monkeypatch.chdir(model)
    (model / name).unlink(missing_ok=True)
    put(model / name)
    with pytest.raises(UserError) as raised:
        start(job_of(model))
    require_a_sentence(raised.value)


@pytest.mark.parametrize("put", NO_FILES)
@pytest.mark.parametrize("name", ["run.json", "manifests/000000000001-000001.json"])
def test_no_pipe_and_no_device_is_read_in_a_runs_folder(put, name, tmp_path, monkeypatch):
    """Of a run, too."""
    run = RunFolder(Storage(str(tmp_path / "run")))
    run.ensure_identity()
    (tmp_path / "run" / "manifests").mkdir()
    (tmp_path / "run" / name).unlink(missing_ok=True)
    monkeypatch.chdir((tmp_path / "run" / name).parent)
    put(tmp_path / "run" / name)
    with pytest.raises(StoreError) as raised:
        run.manifest("000000000001-000001")
    require_a_sentence(raised.value)


def test_files_of_the_kernel_are_not_read():
    """They say that they are empty. /proc/kmsg never ends."""
    with pytest.raises(OSError, match="no regular file"):
        disk.open_regular("/proc/self/status")


def bomb(first, repeated):
    """Nine lines, each of which repeats the one before ten times."""
    lines = [f"a: &a {first}"]
    for before, key in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{key}: &{key} {repeated.format(', '.join([f'*{before}'] * 10))}")
    return "\n".join(lines) + "\n"


BOMBS = {
    "merge keys": bomb("{x: 1}", "{{<<: [{}]}}"),
    "aliases": bomb("[x]", "[{}]"),
    "an alias of itself": "a: &a [*a]\n",
    "interpolations": "loss: {name: sft}\nbatch_size: 8\ntrainer: FSDPTrainer\n"
    + "".join(f"k{number}: '{f'${{k{number + 1}}}' * 4}'\n" for number in range(13))
    + "k13: x\n",
    "levels": "".join(f"{' ' * level}k:\n" for level in range(300)),
    "a number to the base 60": "a: " + ":".join(["59"] * 50_000) + "\n",
    "values": "a: [" + "1," * 60_000 + "]\n",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_yaml_bomb_is_refused_in_one_sentence(text, tmp_path):
    """In a recipe, a cluster file and a job."""
    file = tmp_path / "bomb.yaml"
    file.write_text(text)
    for read in (read_recipe, read_cluster, read_job):
        with pytest.raises(PlannerError) as raised:
            read(str(file))
        require_a_sentence(raised.value)


ODD = [".nan", ".inf", "[]", "{}", "1e999", "[.nan]", "{a: 1}"]
KEYS = [
    *("loss_type", "attn_implementation", "truncation_mode", "packing_strategy", "optim", "lr_scheduler_type"),
    *("eval_strategy", "max_steps", "learning_rate", "beta", "warmup_ratio", "lora_target_modules", "max_length"),
    *("lora_r", "dataset_name", "optim_args", "eos_token", "gradient_checkpointing_kwargs", "accelerator_config"),
]


@pytest.mark.parametrize("key", KEYS)
def test_an_odd_value_of_a_recipe_is_no_traceback(key, tmp_path, capsys):
    """Whatever stands there, and whatever is made of it."""
    file = tmp_path / "recipe.yaml"
    for value in ODD:
        for method in ("dpo", "sft"):
            file.write_text(f"{TRL}{key}: {value}\n" if f"{key}:" not in TRL else f"{TRL}x: {value}\n")
            for words in (["check", "--tuned-for", "4", "--gpus", "4"], ["convert", "--gpus", "4"]):
                try:
                    app([words[0], str(file), *words[1:], "--method", method], standalone_mode=False)
                except PlannerError as error:
                    require_a_sentence(error)
            capsys.readouterr()


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_a_recipe_has_no_such_numbers(value, tmp_path):
    """Nobody means them. The key is named, also of a list."""
    file = tmp_path / "recipe.yaml"
    file.write_text(f"{TRL}loss_type: {value}\n")
    with pytest.raises(RecipeError, match=rf"loss_type: found \{value} .*Write a finite number"):
        read_recipe(str(file), (), RecipeOptions(gpus=4, method="dpo"))
    file.write_text(f"{TRL}loss_type: [{value}]\n")
    with pytest.raises(RecipeError, match=rf"loss_type: found \{value} "):
        read_recipe(str(file), (), RecipeOptions(gpus=4, method="dpo"))


def planner(*words, cwd, **environment):
    command = [sys.executable, "-m", "planner.cli", *words]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
        errors="replace",
        text=True,
    )


@pytest.mark.process
def test_an_unknown_home_folder_is_one_line(tmp_path):
    """Of a user who is not there, or without HOME."""
    for path in ("~nobody/x", "~no-such-user/x", "~/x"):
        done = planner("show", path, cwd=tmp_path, HOME="")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "no run here" in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("words", [("\udcff", "out"), ("text.txt", "\udcff"), ("\udcff*", "out")])
def test_prepare_takes_a_name_of_any_bytes(words, tmp_path):
    """A name on Linux is bytes. It works, or it is one line."""
    (tmp_path / "text.txt").write_text("hello there")
    done = planner("prepare", *words, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2}
    assert bool(done.stderr) == bool(done.returncode)


def test_dates_beyond_pythons_do_not_matter(tmp_path, model):
    """In a column that nobody reads, nor beside what is read."""
    import pyarrow as pa
    from pyarrow import parquet

    days = pa.array([2**30] * 20, pa.int32()).cast(pa.date32())
    times = pa.array([2**62] * 20).cast(pa.timestamp("ns", "Mars/Olympus"))
    inner = pa.StructArray.from_arrays([times, days], ["when", "day"])
    rows = {"prompt": ["a"] * 20, "completion": ["b"] * 20, "day": days, "time": times, "more": inner}
    parquet.write_table(pa.table(rows), tmp_path / "dates.parquet")
    assert len(start(job_of(model, data="dates.parquet"))) == 20


@pytest.mark.process
@pytest.mark.parametrize("metadata", [b"", b"[1]", b"x"])
@pytest.mark.parametrize("name", [b"ray.data.arrow_tensor", b"ray.data.arrow_tensor_v2"])
def test_a_tensors_name_over_another_type_is_refused(name, metadata, tmp_path):
    """Where Ray has registered the type, as in workers, its own code fails on it."""
    code = f"""
import pyarrow as pa, ray.data.extensions
from pyarrow import parquet
from planner.data.rows import read_rows
from planner.errors import DataError
metadata = {{"ARROW:extension:name": {name!r}, "ARROW:extension:metadata": {metadata!r}}}
field = pa.field("x", pa.int64(), metadata=metadata)
parquet.write_table(pa.table([pa.array([1, 2])], pa.schema([field])), "x.parquet")
try:
    list(read_rows("x.parquet", None))
except DataError as error:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_a_message_is_never_long(tmp_path):
    """Whatever a stranger has written into the file."""
    file = tmp_path / "job.yaml"
    file.write_text("".join(f"{'k' * 5000}{number}: 1\n" for number in range(100)))
    with pytest.raises(JobError) as raised:
        read_job(file)
    require_a_sentence(raised.value)
    require_a_sentence(StoreError("\x1b" * 100_000))
    require_a_sentence(DataError("x" * 100_000))


def test_what_transformers_logs_of_a_model_is_escaped(model, capfd):
    """It writes odd values as they stand in the file."""
    rope = {"rope_type": "linear", "factor": "\x1b[31mred"}
    (model / "config.json").write_text(json.dumps({**LLAMA, "rope_parameters": rope}))
    with contextlib.suppress(UserError):
        HfTokenizer.load(job_of(model).model)
    logged = "".join(capfd.readouterr())
    assert "\x1b" not in logged
