"""What a job file may say, and what a wrong one is told."""

import os
import subprocess
import sys
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.errors import JobError
from planner.files import dump_job, parse_job, read_job
from planner.files.loader import MAX_BYTES
from planner.files.validation_errors import ELSEWHERE, _all_paths, translate
from planner.job import (
    AdamW,
    Job,
    JsonlData,
    LmObjective,
    Objective,
    ObjectiveSpec,
    OwnOptimizer,
    ReferenceSource,
    SimpoObjective,
    TextData,
    Train,
)
from planner.job.objectives import OURS
from planner.job.resource_names import refusal
from planner.store.run_folder import job_file

MINIMAL = """\
name: tiny
model: {kind: gpt, layers: 2, width: 64, heads: 4, context: 128}
data: {kind: text, path: python-stdlib}
batch: {global: 32, max_micro: 4}
train:
  steps: 100
  optimizer: {kind: adamw, lr: 1e-3}
"""

COMPLETE = """\
# every key there is
name: all-of-it.v2
model:
  kind: gpt
  layers: 12
  width: 768
  heads: 12
  context: 1024
data:
  kind: jsonl
  path: "rows/*.jsonl"
  field: body
objective: lm
batch:
  global: 96
  max_micro: 8
train:
  epochs: 3
  seed: 9223372036854775807
  optimizer:
    kind: adamw
    lr: 5e-7
    betas: [0.9, 0.95]
    eps: 1E-8
    weight_decay: 1
  schedule: {kind: cosine, warmup: 10, final_fraction: .1}
  clip_norm: null
  precision: bf16
  activation_checkpointing: true
eval: {samples: 64, every: 50}
workers:
  min: 2
  max: 16
  cpus: 0.5
  gpus: 0
  resources: {spot-node: 1, "a b": 0.25}
checkpoint: {path: s3://bucket/run, every: 25, keep: 3, verify: read_back, memory: 7}
"""


def lines_of(text, overrides=()):
    with pytest.raises(JobError) as caught:
        parse_job(text, overrides=overrides)
    return str(caught.value).split("\n")


def changed(old, new):
    assert MINIMAL.count(old) == 1, old
    return MINIMAL.replace(old, new)


# --- what is right ----------------------------------------------------------------------------------------


def test_a_minimal_job_reads_with_its_defaults():
    job = parse_job(MINIMAL)
    assert (job.name, job.batch.global_batch, job.train.steps) == ("tiny", 32, 100)
    assert job.data == TextData(kind="text", path="python-stdlib")
    assert job.train.optimizer == AdamW(kind="adamw", lr=0.001)
    assert (job.objective, job.workers.max, job.train.clip_norm) == (LmObjective(), 8, 1.0)


def test_a_complete_job_reads_every_key():
    job = parse_job(COMPLETE)
    assert job.data == JsonlData(kind="jsonl", path="rows/*.jsonl", field="body")
    assert job.train.optimizer == AdamW(kind="adamw", lr=5e-7, betas=(0.9, 0.95), eps=1e-8, weight_decay=1.0)
    assert (job.train.steps, job.train.epochs, job.train.seed) == (None, 3, 2**63 - 1)
    assert (job.train.schedule.kind, job.train.schedule.final_fraction) == ("cosine", 0.1)
    assert (job.train.clip_norm, job.train.activation_checkpointing) == (None, True)
    assert job.workers.resources == {"spot-node": 1.0, "a b": 0.25}
    checkpoint = {"path": "s3://bucket/run", "every": "25 steps", "keep": 3, "verify": "read_back", "memory": 7}
    assert job.checkpoint.model_dump() == checkpoint


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 1e-3),
        ("5e-7", 5e-7),
        ("1E1", 10.0),
        ("+.5", 0.5),
        ("1.", 1.0),
        ("3", 3.0),
        ("0.30000000000000004", 0.30000000000000004),
        ("1.5e+1", 15.0),
    ],
)
def test_numbers_are_those_of_yaml_1_2(written, value):
    """`1e-3` is a number."""
    assert parse_job(changed("1e-3", written)).train.optimizer.lr == value


@pytest.mark.parametrize("written", ["yes", "no", "on", "off", "y", "N", "010", "0x10", "1_000", "1:30", "2024-01-01"])
def test_what_yaml_1_1_turned_into_something_else_is_text(written):
    assert parse_job(changed("python-stdlib", written)).data.path == written


@pytest.mark.parametrize(("written", "value"), [("", "auto"), ("every: auto", "auto"), ("every: 7", "7 steps")])
def test_the_steps_between_commits_are_measured_or_counted(written, value):
    assert parse_job(f"{MINIMAL}checkpoint: {{{written}}}\n").checkpoint.every == value


def test_batches_is_the_early_name_of_balanced():
    """One thing with two names is one job: the same digest, the same identity."""
    written = [
        MINIMAL.replace("max_micro: 4}", f"max_micro: 4, equality: {name}}}") for name in ("batches", "balanced")
    ]
    jobs = [parse_job(text) for text in [MINIMAL, *written]]
    assert {job.batch.equality for job in jobs} == {"balanced"}
    assert len({job_file(job) for job in jobs}) == 1


@pytest.mark.parametrize("written", ["true", "True", "TRUE"])
def test_true_has_three_spellings(written):
    assert parse_job(f"{MINIMAL}  activation_checkpointing: {written}\n").train.activation_checkpointing is True


@pytest.mark.parametrize("written", ["null", "~", "", "Null", "NULL"])
def test_null_has_five_spellings(written):
    assert parse_job(f"{MINIMAL}  clip_norm: {written}\n").train.clip_norm is None


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + COMPLETE.replace("\n", "\r\n").encode())
    assert read_job(path) == parse_job(COMPLETE)
    assert parse_job(COMPLETE.replace("\n", "\r")) == parse_job(COMPLETE)


def test_text_of_every_alphabet_and_block_text_are_read(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(changed("python-stdlib", '"daten/größe-数据-😀"'), encoding="utf-8")
    assert read_job(str(path)).data.path == "daten/größe-数据-😀"
    assert parse_job("data:\n  kind: text\n  path: >-\n    a\n    b\n" + changed("data:", "# ")).data.path == "a b"


# --- what is wrong ----------------------------------------------------------------------------------------

BATCH = "batch: {global: 32, max_micro: 4}"
OPTIMIZER = "optimizer: {kind: adamw, lr: 1e-3}"
TEXT = "data: {kind: text, path: python-stdlib}"
FROM_1 = "Write a whole number from 1 to 1048576 (samples per optimizer step)"
SUCH_AS = "text such as 150 steps, 20000 examples, 0.5 epochs or 10%"
AUTO_OR_FROM_1 = f"Write auto or a whole number from 1 to 1099511627776 or {SUCH_AS} (duration between commits. A whole"

# (what replaces what in the minimal job, the path of the one line, what the line says besides)
WRONG = [
    # a key that is missing
    ("name: tiny", "", "name", ["found nothing", "a-z"]),
    (BATCH, "", "batch", ["found nothing", "at least the keys global, max_micro"]),
    (TEXT, "", "data", ["found nothing", "kind: one of chat, feedback, jsonl, own"]),
    (BATCH, "batch: {max_micro: 4}", "batch.global", ["found nothing", FROM_1]),
    (
        TEXT,
        "data: {path: x}",
        "data.kind",
        ["found nothing", "Write one of chat, feedback, jsonl, own"],
    ),
    (TEXT, "data: {kind: text}", "data.path", ["found nothing", "text that is not empty"]),
    (
        OPTIMIZER,
        "optimizer: {kind: sgd}",
        "train.optimizer.lr",
        ["found nothing", "above 0 and at most 1000"],
    ),
    ("  " + OPTIMIZER, "", "train.optimizer", ["found nothing", "one of adamw, own, rmsprop, sgd"]),
    # a key that is unknown
    (
        "max_micro: 4",
        "max_micro: 4, max_mirco: 4",
        "batch.max_mirco",
        ["unknown key", "Did you mean batch.max_micro?"],
    ),
    ("steps: 100", "steps: 100\n  step: 1", "train.step", ["unknown key", "mean train.steps"]),
    ("steps: 100", "steps: 100\n  lr: 1", "train.lr", ["unknown key", "Did you mean train.optimizer.lr?"]),
    ("lr: 1e-3", "lr: 1, BETAS: [0, 0]", "train.optimizer.BETAS", ["Did you mean train.optimizer.betas?"]),
    (
        "lr: 1e-3",
        "lr: 1, momentum: 0",
        "train.optimizer.momentum",
        ["The keys of train.optimizer are kind, lr, betas, eps, weight_decay"],
    ),
    ("name: tiny", "name: tiny\nglobal: 3", "global", ["Did you mean batch.global?"]),
    ("name: tiny", "name: tiny\nzzz: 3", "zzz", ["The keys of a job are name, model, data,"]),
    ("max_micro: 4", "max_micro: 4, zzz: 1", "batch.zzz", ["The keys of batch are global, max_micro"]),
    ("path: python", "zzz: 1, path: python", "data.zzz", ["The keys of data are kind, path"]),
    ("path: python", "text: 1, path: python", "data.text", ["unknown key"]),
    ("name: tiny", 'name: tiny\n"a.b\\nc": 3', '"a.b\\nc"', ["unknown key"]),
    ("name: tiny", 'name: tiny\n"": 3', '""', ["unknown key"]),
    ("max_micro: 4", "max_micro: 4, global_batch: 4", "batch.global_batch", ["Did you mean batch.global?"]),
    # a whole number that is none, or out of bounds
    ("32", '"32"', "batch.global", ['found "32" (text)', FROM_1]),
    ("32", "32.0", "batch.global", ["found 32.0 (a decimal number). Write 32"]),
    ("32", "1e3", "batch.global", ["found 1000.0 (a decimal number). Write 1000"]),
    ("32", "32.5", "batch.global", ["found 32.5 (a decimal number)", FROM_1]),
    ("32", "0.0", "batch.global", ["found 0.0 (a decimal number)", FROM_1]),
    ("32", "0", "batch.global", ["found 0 (a whole number)", FROM_1]),
    ("32", "-5", "batch.global", ["found -5", FROM_1]),
    ("32", "1048577", "batch.global", ["found 1048577", FROM_1]),
    ("32", "true", "batch.global", ["found true (a boolean)", FROM_1]),
    ("32", "", "batch.global", ["found null", FROM_1]),
    ("32", "010", "batch.global", ['found "010" (text)', FROM_1]),
    ("32", "0x10", "batch.global", ['found "0x10" (text)', FROM_1]),
    ("32", "0o10", "batch.global", ['found "0o10" (text)', FROM_1]),
    ("32", "1_000", "batch.global", ['found "1_000" (text)', FROM_1]),
    ("32", "1:30", "batch.global", ['found "1:30" (text)', FROM_1]),
    ("32", "2024-01-01", "batch.global", ['found "2024-01-01" (text)', FROM_1]),
    ("32", "[32]", "batch.global", ["found a list of 1", FROM_1]),
    ("32", "{a: 1}", "batch.global", ["found a section with the keys a", FROM_1]),
    ("32", "{}", "batch.global", ["found an empty section", FROM_1]),
    ("32", ".inf", "batch.global", ["found .inf (infinity)", FROM_1]),
    ("32", ".nan", "batch.global", ["found .nan (not a number)", FROM_1]),
    ("32", "1" + "0" * 5000, "batch.global", ["found a whole number of 5001 digits", FROM_1]),
    ("32", "1" + "0" * 39, "batch.global", ["found 1000", FROM_1]),
    ("steps: 100", "steps: 1e2", "train.steps", ["found 100.0 (a decimal number). Write 100"]),
    ("steps: 100", "steps: 0", "train.steps", ["found 0", "from 1 to 1099511627776 or null"]),
    ("steps: 100", "steps: 1\n  seed: -1", "train.seed", ["found -1", "below 9223372036854775808"]),
    ("name: tiny", "name: tiny\nworkers: {gpus: 2}", "workers.gpus", ["found 2", "from 0 to 1"]),
    # a whole number or a word: one line, whatever each of the two had to say
    ("name: tiny", "name: tiny\ncheckpoint: {every: 0}", "checkpoint.every", ["found 0", AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every: Auto}", "checkpoint.every", ['"Auto"', AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every: '9'}", "checkpoint.every", ['"9"', AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every:}", "checkpoint.every", ["null", AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every: true}", "checkpoint.every", ["true", AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every: [9]}", "checkpoint.every", ["a list", AUTO_OR_FROM_1]),
    ("name: tiny", "name: tiny\ncheckpoint: {every: 9.0}", "checkpoint.every", ["found 9.0", "Write 9"]),
    ("name: tiny", "name: tiny\neval: {every: 0 steps}", "eval.every", ['found "0 steps" (text)', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every: 0.0%}", "eval.every", ['found "0.0%" (text)', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every: 101%}", "eval.every", ['found "101%" (text)', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every: 0.5 steps}", "eval.every", ['found "0.5 steps" (text)', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every: 9 epochs rounded}", "eval.every", ['"9 epochs rounded"', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every: auto}", "eval.every", ['found "auto" (text)', SUCH_AS]),
    ("name: tiny", "name: tiny\neval: {every_steps: 9}", "eval.every_steps", ["unknown key. Did you mean eval.every?"]),
    ("steps: 100", "steps: 1\n  schedule: {warmup: -1}", "train.schedule.warmup", ["found -1", SUCH_AS]),
    (
        "steps: 100",
        "steps: 1\n  schedule: {warmup_steps: 9}",
        "train.schedule.warmup_steps",
        ["Did you mean train.schedule.warmup?"],
    ),
    ("steps: 100", "epochs: 0", "train.epochs", ["found 0", "a number above 0 and at most 1048576 or null"]),
    ("steps: 100", "examples: 0", "train.examples", ["found 0", "a whole number from 1 to"]),
    # a number
    ("1e-3", "0", "train.optimizer.lr", ["found 0", "above 0 and at most 100"]),
    ("1e-3", "1e3", "train.optimizer.lr", ["found 1000.0", "above 0 and at most 100"]),
    ("1e-3", "-1e-3", "train.optimizer.lr", ["found -0.001 (a decimal number)"]),
    ("1e-3", "'1e-3'", "train.optimizer.lr", ['found "1e-3" (text)', "a number above 0"]),
    ("1e-3", "false", "train.optimizer.lr", ["found false (a boolean)"]),
    ("1e-3", "-.INF", "train.optimizer.lr", ["found -.inf (infinity)"]),
    ("1e-3", ".NaN", "train.optimizer.lr", ["found .nan (not a number)"]),
    ("1e-3", "1e999", "train.optimizer.lr", ["found 1e999 (larger than any number here)"]),
    ("1e-3", "1e-999", "train.optimizer.lr", ["found 1e-999 (too close to zero"]),
    ("1e-3", "01.5", "train.optimizer.lr", ['found "01.5" (text)']),
    ("steps: 100", "steps: 1\n  clip_norm: 0", "train.clip_norm", ["found 0", "a number above 0 or null"]),
    (
        "name: tiny",
        "name: tiny\nworkers: {resources: {a: yes}}",
        "workers.resources.a",
        ['found "yes" (text)'],
    ),
    ("name: tiny", 'name: tiny\nworkers: {resources: {"a b": 0}}', 'workers.resources."a b"', ["from 0.0001"]),
    (
        "name: tiny",
        "name: tiny\nworkers: {resources: [a]}",
        "workers.resources",
        ["a section of names, each with"],
    ),
    # a list
    ("1e-3", "1, betas: [0.9]", "train.optimizer.betas[1]", ["found nothing", "of at least 0 and below 1"]),
    ("1e-3", "1, betas: [0, 0, 0]", "train.optimizer.betas", ["found a list of 3", "a list of 2"]),
    ("1e-3", "1, betas: [0.9, 1]", "train.optimizer.betas[1]", ["found 1", "below 1"]),
    ("1e-3", "1, betas: 0.9", "train.optimizer.betas", ["found 0.9", "a list of 2"]),
    ("1e-3", "1, betas: [true, 0]", "train.optimizer.betas[0]", ["found true (a boolean)"]),
    # text, booleans, choices
    ("tiny", "Tiny", "name", ['found "Tiny" (text)', "a-z, 0-9"]),
    ("tiny", "12", "name", ["found 12 (a whole number)", "a-z, 0-9"]),
    ("tiny", '"a\\nb\\u0007\\e[31m"', "name", ['found "a\\nb\\x07\\x1b[31m" (text)']),
    ("tiny", "x" * 5000, "name", [f'found "{"x" * 60}..." (text)']),
    ("python-stdlib", '""', "data.path", ['found "" (text)', "text that is not empty"]),
    ("python-stdlib", "12", "data.path", ["found 12 (a whole number)", "text"]),
    ("python-stdlib", "true", "data.path", ["found true (a boolean)", "text"]),
    ("steps: 100", "steps: 1\n  compile: true", "train.compile", ["found true", "Write one of false, blocks"]),
    ("steps: 100", "steps: 1\n  precision: fp16", "train.precision", ['"fp16"', "Write one of fp32, bf16"]),
    (
        "steps: 100",
        "steps: 1\n  activation_checkpointing: yes",
        "train.activation_checkpointing",
        ['found "yes" (text). Write selective or true or false'],
    ),
    (
        "steps: 100",
        "steps: 1\n  activation_checkpointing: 1",
        "train.activation_checkpointing",
        ["true or false"],
    ),
    ("steps: 100", "steps: 1\n  schedule: {kind: step}", "train.schedule.kind", ["constant, linear, cosine"]),
    ("kind: gpt", "kind: bert", "model.kind", ['found "bert" (text). Write one of gpt, hf, own']),
    ("kind: text", "kind: csv", "data.kind", ['found "csv" (text). Write one of chat, feedback, jsonl']),
    (
        "kind: text",
        "kind: [text]",
        "data.kind",
        ["found a list of 1. Write one of chat, feedback, jsonl, own"],
    ),
    ("kind: text", "kind:", "data.kind", ["found null. Write one of chat, feedback, jsonl, own"]),
    ("kind: adamw", "kind: adam", "train.optimizer.kind", ['found "adam" (text). Write one of adamw']),
    ("name: tiny", "name: tiny\nobjective: ppo", "objective.kind", ['found "ppo" (text). Write one of dpo, ipo']),
    (
        "name: tiny",
        "name: tiny\nobjective: 3",
        "objective",
        ["found 3", "Write a section with kind: one of dpo, ipo"],
    ),
    # sections
    (BATCH, "batch: 32", "batch", ["found 32 (a whole number)", "the keys global, max_micro"]),
    (BATCH, "batch:", "batch", ["found null", "the keys global, max_micro"]),
    (
        TEXT,
        "data: x",
        "data",
        ['found "x" (text)', "a section with kind: one of chat, feedback, jsonl, own"],
    ),
    (TEXT, "data: [x]", "data", ["found a list of 1"]),
    (
        TEXT,
        'data: "\\uD800"',
        "data",
        ["found half a character", "a section with kind: one of chat, feedback, jsonl, own"],
    ),
    # the model's own rules
    ("heads: 4", "heads: 5", "model", ["width 64 does not split into 5 heads. Write a multiple of 5"]),
    ("steps: 100", "", "train", ["found no length. Write exactly one of steps, epochs and examples"]),
    (
        "steps: 100",
        "steps: 1\n  epochs: 1",
        "train",
        ["found steps and epochs. Write exactly one of steps, epochs and examples"],
    ),
    (
        "steps: 100",
        "examples: 1\n  epochs: 1",
        "train",
        ["examples (null removes one, as in train.examples=null)"],
    ),
    ("name: tiny", "name: tiny\nworkers: {min: 9}", "workers", ["min 9 is above max 8"]),
    ("name: tiny", "name: tiny\nworkers: {cpus: 0, gpus: 0}", "workers", ["a worker takes no resource"]),
    ("name: tiny", "name: tiny\nworkers: {cpus: 0.00001}", "workers", ["cpus 1e-05 is below 0.0001"]),
    # what is not read of YAML
    ("name: tiny", "name: tiny\nname: b", "name", ["found twice, on line 1 and line 2"]),
    (OPTIMIZER, OPTIMIZER + "\n  'steps': 7", "train.steps", ["found twice, on line 6 and line 8"]),
    (
        "max_micro: 4",
        "max_micro: &m 4",
        "batch.max_micro",
        ["the anchor &m. Anchors and aliases are not read"],
    ),
    (BATCH, "batch: &b {global: 32}", "batch", ["the anchor &b. Anchors and aliases are not read", "line 4"]),
    ("max_micro: 4", "max_micro: *m", "batch.max_micro", ["the alias *m. Anchors and aliases are not read"]),
    (
        "python-stdlib",
        "!!python/object/apply:os.system [x]",
        "data.path",
        ["tag !!python/object/apply:os.system."],
    ),
    ("python-stdlib", "!foo x", "data.path", ["found the tag !foo. Tags are not read"]),
    ("python-stdlib", "!!str x", "data.path", ["found the tag !!str. Tags are not read"]),
    ("python-stdlib", "! x", "data.path", ["found the tag !. Tags are not read"]),
    ("python-stdlib", '"\\ud800"', "data.path", ["half a character"]),
    ("name: tiny", "name: tiny\n<<: *d", "", ["found a merge key (<<). Anchors and aliases are not read"]),
    ("name: tiny", "name: tiny\n1: &a 2", "", ["found a key that is 1 (a whole number)", "line 2"]),
    ("steps: 100", "steps: 100\n  true: 2", "train", ["found a key that is true (a boolean)", "line 7"]),
    ("steps: 100", "steps: 100\n  null: 2", "train", ["found a key that is null"]),
    ("steps: 100", "steps: 100\n  ? [a, *b]\n  : 2", "train", ["found a key that is a list of 2"]),
    ("name: tiny", "name: tiny\n*a : 2", "", ["found the alias *a. Anchors and aliases are not read"]),
    ("name: tiny", "name: tiny\n&a b: 2", "", ["found the anchor &a. Anchors and aliases are not read"]),
]


@pytest.mark.parametrize(("old", "new", "path", "says"), WRONG)
def test_one_mistake_is_one_line_with_the_path_and_what_to_write(old, new, path, says):
    (line,) = lines_of(changed(old, new))
    assert line.startswith(f"job: {path}: " if path else "job: found ")
    for words in says:
        assert words in line
    assert len(line) < 300


@pytest.mark.parametrize(("old", "new"), [row[:2] for row in WRONG])
def test_no_line_speaks_pydantic(old, new):
    (line,) = lines_of(changed(old, new))
    for word in (
        "Input should",
        "pydantic",
        "http",
        "validation error",
        "type=",
        "adamw.",
        "data.text.",
        "Extra inputs",
    ):
        assert word not in line.replace("data.text: found an unknown", "")
    assert line.isprintable()


# (the text, what the one line says)
UNREADABLE = [
    ("", ["job: found nothing in it. Write a job"]),
    ("# only\n# comments\n", ["job: found nothing in it. Write a job"]),
    ("---\n", ["job: found null. Write a mapping"]),
    ("- a\n- b\n", ["job: found a list of 2. Write a mapping"]),
    ("just text", ['job: found "just text" (text). Write a mapping']),
    ("12", ["job: found 12 (a whole number). Write a mapping"]),
    ("&a {b: 1}", ["job: found the anchor &a. Anchors and aliases are not read"]),
    ("!!map {b: 1}", ["job: found the tag !!map. Tags are not read"]),
    (MINIMAL + "---\n" + MINIMAL, ["job: found a second document on line 8. Write one job per file"]),
    (MINIMAL + "...\n---\n", ["job: found a second document"]),
    ("%YAML 1.2\n---\n" + MINIMAL, ["job: found a directive (%) on line 1. Remove it"]),
    ("%TAG !e! tag:x\n---\n" + MINIMAL, ["job: found a directive (%)"]),
    ("%YAML " + "1" * 5000 + ".1\n---\n", ["job: found what is not YAML"]),
    ("%YAML 9.1\n---\n", ["job: line 1, column 1: found a YAML mistake"]),
    ('a: "\\UFFFFFFFF"', ["job: found what is not YAML"]),
    ("a:\n\tb: 1", ["job: line 2, column 1: found a tab. Write spaces"]),
    ("a:\n  \tb: 1", ["job: line 2, column 3: found a tab. Write spaces"]),
    ("a: 1\t# b", ["job: line 1, column 5: found a tab. Write spaces"]),
    ("a: b: c", ["job: line 1, column 5: found a YAML mistake (mapping values"]),
    ("a: [1, 2", ["job: line 1, column 9: found a YAML mistake"]),
    ("a: 'b", ["job: line 1, column 6: found a YAML mistake"]),
    ("a: }", ["job: line 1, column 4: found a YAML mistake"]),
    ("a: @b", ["job: line 1, column 4: found a YAML mistake"]),
    ("a: 1\nb: \x07", ["job: line 2, column 4: found the control character \\x07"]),
    ("a: \0", ["job: line 1, column 4: found the control character \\x00"]),
    ("a: \ud800", ["job: line 1, column 4: found the control character \\ud800"]),
    ("a: b\u2028c", ["job: line 1, column 5: found the control character \\u2028"]),
    ("a: b\ufeffc", ["job: line 1, column 5: found the control character \\ufeff"]),
    ("a: " + "[" * 100_000, ["job: found more than 20 levels on line 1"]),
    ("? " * 100_000, ["job: found more than 20 levels on line 1"]),
    ("{" * 100_000, ["job: found more than 20 levels on line 1"]),
    ("- " * 100_000, ["job: found more than 20 levels on line 1"]),
]


@pytest.mark.parametrize(("text", "says"), UNREADABLE)
def test_what_cannot_be_read_at_all_is_one_line(text, says):
    (line,) = lines_of(text)
    assert says[0] in line
    assert line.isprintable()


def test_a_deep_but_readable_file_reaches_the_model():
    """Twenty levels below the top are read. Then they are an unknown key."""
    (line,) = lines_of(MINIMAL + "a: " + "[" * 20 + "]" * 20)
    assert line.startswith("job: a: found an unknown key. The keys of a job are name, model,")
    assert "more than 20 levels" in lines_of(MINIMAL + "a: " + "[" * 21 + "]" * 21)[0]


def test_all_mistakes_of_a_file_are_told_at_once():
    text = (
        changed("global: 32", "global: 0, globl: 1, max_micro: 3").replace("tiny", "!x tiny") + "eval: {samples: x}\n"
    )
    assert [line.split(": ")[1] for line in lines_of(text)] == [
        "name",
        "batch.max_micro",
        "batch.global",
        "batch.globl",
        "eval.samples",
    ]


def test_a_refused_key_does_not_hide_the_mistakes_of_its_section():
    lines = lines_of(changed("global: 32", "global: 0, 7: x") + "8: y\n<<: *z\n")
    assert [line.split(". ")[0] for line in lines] == [
        "job: batch: found a key that is 7 (a whole number)",
        "job: found a key that is 8 (a whole number)",
        "job: found a merge key (<<)",
        "job: batch.global: found 0 (a whole number)",
    ]


def test_a_syntax_error_does_not_hide_the_mistakes_before_it():
    assert len(lines_of("a: 1\na: 2\nb: }")) == 2


def test_mistakes_are_shown_while_there_is_room_and_the_rest_counted():
    lines = lines_of(MINIMAL + "".join(f"zzz{number}: 1\n" for number in range(25)))
    assert all("found an unknown key" in line and line.endswith("workers, checkpoint, tracking") for line in lines[:-1])
    assert lines[-1] == f"... and {25 - len(lines[:-1])} more"
    assert len("\n".join(lines)) <= 500


def test_the_advice_of_each_shown_mistake_is_whole():
    """All five mistakes together are longer than 500 characters, so the last one is only counted."""
    with pytest.raises(JobError) as caught:
        parse_job("name: x\nfoo: 1\n", source="runs/bad.yaml")
    *lines, rest = str(caught.value).split("\n")
    assert all(" ... " not in line for line in lines)
    assert "with kind: one of chat, " in lines[1]
    assert rest == f"... and {5 - len(lines)} more"


def test_every_line_opens_with_the_source_on_one_line():
    with pytest.raises(JobError) as caught:
        parse_job("zzz: 1\nname: 3", source="my\njob.yaml")
    *lines, rest = str(caught.value).split("\n")
    assert all(line.startswith("my\\njob.yaml: ") for line in lines)
    assert rest.startswith("... and ")


def test_more_workers_than_samples_are_not_asked_for():
    """More workers than samples would have nothing to do. As many as samples are allowed."""
    (line,) = lines_of(changed(BATCH, "batch: {global: 3, max_micro: 4}\nworkers: {min: 4}"))
    assert line.startswith("job: workers.min 4 is above batch.global 3, and each worker needs a sample of every step")
    assert parse_job(changed(BATCH, "batch: {global: 3, max_micro: 4}\nworkers: {min: 3}")).workers.min == 3


@pytest.mark.parametrize(("theirs", "ours"), sorted(ELSEWHERE.items()))
def test_what_others_call_a_key_is_known(theirs, ours):
    """Each of ours is a key of a job."""
    (line,) = lines_of(MINIMAL + f"  {theirs}: 1\n")
    assert line == f"job: train.{theirs}: found an unknown key. Did you mean {ours}?"
    keys = {".".join(path) for path in _all_paths(Job.model_json_schema(), Job.model_json_schema())}
    assert ours.partition(" ")[0] in keys


def test_an_error_has_no_cause_to_print():
    """A traceback, where someone prints one, is ours alone."""
    for text in ("zzz: 1", "a: }", 'a: "\\UFFFFFFFF"'):
        with pytest.raises(JobError) as caught:
            parse_job(text)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_a_complaint_nobody_foresaw_is_still_plain():
    class Foreign:
        def errors(self, **_options):
            return [{"type": "new", "loc": ("a", "b"), "msg": "Input should be a\nfoo", "input": 3, "ctx": {}}]

    (mistake,) = translate(Foreign(), frozenset())
    assert (mistake.path, mistake.text) == (
        ("a", "b"),
        "found 3 (a whole number). Write what it should be: a\\nfoo",
    )


# --- the file ---------------------------------------------------------------------------------------------


def told(path):
    with pytest.raises(JobError) as caught:
        read_job(path)
    return str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    assert told(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: found no such file. Write the path of a job file"
    assert told(str(tmp_path)) == f"{tmp_path}: found a directory. Write the path of a job file in it"


def test_a_path_that_no_file_can_have_is_told(tmp_path):
    assert "found an impossible file name" in told("a\0b")
    assert "cannot be read (File name too long)" in told(tmp_path / ("x" * 5000))
    (tmp_path / "file").write_text("")
    assert "cannot be read (Not a directory)" in told(tmp_path / "file" / "job.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_told(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL)
    path.chmod(0)
    assert "you may not read" in told(path)


def test_a_refused_permission_is_told(monkeypatch):
    """The same as root, to whom no file is closed."""

    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    assert told("job.yaml") == "job.yaml: found a file that you may not read. Give yourself permission to read it"


def test_bytes_that_are_no_text_are_told_with_their_offset(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"name: a\xffb")
    assert "byte 0xff at byte offset 7, which is not UTF-8" in told(path)
    path.write_bytes("name: a".encode("utf-16"))
    assert "byte 0xff at byte offset 0, which is not UTF-8" in told(path)
    path.write_bytes(b"\x7fELF\0\1")
    assert "a NUL byte at byte offset 4, so this is a binary file" in told(path)


def test_a_file_of_a_mebibyte_is_read_and_of_one_byte_more_is_not(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL + "#" * (MAX_BYTES - len(MINIMAL)))
    assert read_job(path) == parse_job(MINIMAL)
    path.write_text(MINIMAL + "#" * (MAX_BYTES - len(MINIMAL) + 1))
    assert "found more than 1048576 bytes" in told(path)


# --- overrides --------------------------------------------------------------------------------------------


def test_overrides_are_laid_over_the_file_in_order():
    job = parse_job(MINIMAL, overrides=["train.steps=400", "batch.global=96", "train.steps=500"])
    assert (job.train.steps, job.batch.global_batch) == (500, 96)


def test_read_job_takes_overrides(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL)
    assert read_job(path, ["name=other"]).name == "other"


def test_an_override_makes_the_sections_that_are_missing():
    job = parse_job("checkpoint:\n" + MINIMAL, overrides=["workers.resources.spot=1", "checkpoint.keep=5"])
    assert job.workers.resources == {"spot": 1.0}
    assert job.checkpoint.keep == 5


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("*.txt", "*.txt"),
        ("a: b # c", "a: b # c"),
        ("'12'", "12"),
        ('"a\\tb"', "a\tb"),
        (" x=y ", "x=y"),
        ("no", "no"),
    ],
)
def test_an_override_of_text_needs_no_quotes_unless_it_looks_like_another_value(written, value):
    assert parse_job(MINIMAL, overrides=[f"data.path={written}"]).data.path == value


def test_an_override_may_be_a_list_a_null_or_a_boolean():
    overrides = [
        "train.optimizer.betas=[0.5, 5e-1]",
        "train.clip_norm=null",
        "train.activation_checkpointing=true",
    ]
    job = parse_job(MINIMAL, overrides=overrides)
    assert job.train.optimizer.betas == (0.5, 0.5)
    assert (job.train.clip_norm, job.train.activation_checkpointing) == (None, True)


def test_an_override_below_a_value_that_is_refused_adds_no_line():
    (line,) = lines_of(changed(BATCH, "batch: &b {global: 1}"), ["batch.global=3"])
    assert "the anchor &b" in line


def test_an_override_mends_a_wrong_value():
    assert parse_job(changed("32", "9" * 5000), overrides=["batch.global=8"]).batch.global_batch == 8


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.steps", 'job: found the override "train.steps". Write key.path=value'),
        ("", 'job: found the override "". Write key.path=value'),
        ("=3", 'job: found the override "=3". Write key.path=value'),
        ("a..b=3", 'job: found the override "a..b=3". Write key.path=value'),
        (".a=3", 'job: found the override ".a=3". Write key.path=value'),
        ("a." * 20 + "b=3", 'job: found the override "a.a.a.'),
        ("a\nb", 'job: found the override "a\\nb". Write'),
        ("batch.global=x", 'job: batch.global: found "x" (text). Write a whole number'),
        ("batch.global=1_000", 'job: batch.global: found "1_000" (text). Write a whole number'),
        ("batch.global=", "job: batch.global: found null. Write a whole number"),
        ("batch.globl=1", "job: batch.globl: found an unknown key. Did you mean batch.global?"),
        (
            "name.x=1",
            'job: name: found "tiny" (text), which cannot hold name.x. Write the override name=value',
        ),
        ("train.optimizer.betas=[0.9", "job: train.optimizer.betas: line 1, column 5: found a YAML mistake"),
        ("train.optimizer.betas=[0.9, *a]", "job: train.optimizer.betas[1]: found the alias *a. Anchors and"),
        ("workers={min: 1, min: 2}", "job: workers.min: found twice, on line 1 and line 1"),
        ("data.path=a\0b", "job: data.path: line 1, column 2: found the control character \\x00"),
        ("data=" + "[" * 1000, "job: data: found more than 20 levels"),
    ],
)
def test_a_wrong_override_is_one_line(override, says):
    (line,) = lines_of(MINIMAL, [override])
    assert line.startswith(says)


def test_wrong_overrides_are_told_together_with_the_rest():
    lines = lines_of(changed("32", "0"), ["nonsense", "train.seed=-1", "train.optimizer.lr.x=1"])
    assert [line.split(": ")[1] for line in lines] == [
        'found the override "nonsense". Write key.path=value, such as train.steps=400',
        "train.optimizer.lr",
        "batch.global",
        "train.seed",
    ]


# --- properties -------------------------------------------------------------------------------------------


def one_line_each(error):
    lines = str(error).split("\n")
    assert 1 <= len(lines) <= 21
    assert all(line.isprintable() and line for line in lines)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_job_error(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with pytest.raises(JobError) as caught:
        read_job(path)
    one_line_each(caught.value)


TOKENS = [
    *(
        "name",
        "batch",
        "train",
        "data",
        "model",
        "kind",
        "text",
        "global",
        "steps",
        "1",
        "1e3",
        "true",
        "null",
        "x",
    ),
    *(
        ": ",
        ":",
        "\n",
        "\n  ",
        "\n    ",
        " ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "'",
        '"',
        "# ",
        "|\n",
        ">\n",
    ),
    *(
        "&a ",
        "*a",
        "<<",
        "!x ",
        "!!str ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "\t",
        "\\ud800",
        "\\x00",
        "\ufeff",
        "\0",
    ),
]


@given(text=st.one_of(st.text(max_size=80), st.lists(st.sampled_from(TOKENS), max_size=25).map("".join)))
def test_any_text_after_a_job_is_read_or_refused_in_single_lines(text):
    for whole in (text, MINIMAL + text):
        try:
            parse_job(whole)
        except JobError as error:
            one_line_each(error)


@given(
    key=st.sampled_from(
        ["name", "data.path", "batch.global", "train", "train.optimizer.betas", "x", "workers.resources"]
    ),
    text=st.one_of(st.text(max_size=40), st.lists(st.sampled_from(TOKENS), max_size=8).map("".join)),
)
def test_any_override_is_read_or_refused_in_single_lines(key, text):
    for override in (text, f"{key}={text}"):
        try:
            parse_job(MINIMAL, overrides=[override])
        except JobError as error:
            one_line_each(error)


def texts(**options):
    looks = st.sampled_from(
        ["1e-3", "no", "null", "~", "010", "true", "<<", "*a", "!x", "a: b", " #", "- ", "\ufeff", "\x85"]
    )
    return st.one_of(looks, st.text(st.characters(exclude_categories=["Cs"]), **options))


# Ray takes these names.
printable = st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=",")
resource_names = st.one_of(texts(), st.text(printable, min_size=1)).filter(lambda name: not refusal(name))
fractions = st.floats(0, 1, exclude_max=True)
rates = st.one_of(st.floats(0, 100, exclude_min=True), st.integers(1, 100))
amounts = st.one_of(st.floats(0.0001, 100), st.integers(1, 100))
counts = st.integers(1, 2**40)


@st.composite
def jobs(draw):
    optimizer = draw(
        st.one_of(
            st.fixed_dictionaries(
                {"kind": st.just("adamw"), "lr": rates},
                optional={"betas": st.tuples(fractions, fractions), "weight_decay": st.floats(0, 100)},
            ),
            st.fixed_dictionaries({"kind": st.just("rmsprop"), "lr": rates}, optional={"alpha": fractions}),
            st.fixed_dictionaries({"kind": st.just("sgd"), "lr": rates}, optional={"momentum": fractions}),
        )
    )
    data = draw(
        st.one_of(
            st.fixed_dictionaries({"kind": st.just("text"), "path": texts(min_size=1)}),
            st.fixed_dictionaries({"kind": st.just("jsonl"), "path": texts(min_size=1), "field": texts(min_size=1)}),
        )
    )
    heads = draw(st.integers(1, 64))
    train = draw(
        st.fixed_dictionaries(
            {draw(st.sampled_from(["steps", "epochs"])): st.integers(1, 2**20)},
            optional={
                "seed": st.integers(0, 2**63 - 1),
                "clip_norm": st.one_of(st.none(), st.floats(0, exclude_min=True, allow_infinity=False)),
                "precision": st.sampled_from(["fp32", "bf16"]),
                "activation_checkpointing": st.booleans(),
            },
        )
    )
    return Job.model_validate(
        {
            "name": draw(st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")),
            "model": {"kind": "gpt", "layers": 1, "width": heads * 4, "heads": heads, "context": 8},
            "data": data,
            "batch": {"global": draw(st.integers(1, 2**20)), "max_micro": draw(st.integers(1, 4096))},
            "train": {**train, "optimizer": optimizer},
            "workers": {"resources": draw(st.dictionaries(resource_names, amounts, max_size=3))},
            "checkpoint": {"path": draw(texts()), "every": draw(st.just("auto") | counts)},
        }
    )


@given(job=jobs())
def test_a_dumped_job_reads_back_equal(job):
    assert parse_job(dump_job(job)) == job


def test_the_gradient_of_an_own_optimizer_is_clipped_only_if_asked():
    """The optimizer is the user's, and one of planner's is clipped at 1.0 by default. A dump says which."""
    kinds = {"model": {"kind": "own"}, "data": {"kind": "own", "path": "loop.py"}, "objective": "own"}
    own = {"name": "own", **kinds, "batch": {"global": 4, "max_micro": 2}}
    for train, clip_norm in (({}, None), ({"clip_norm": 1.0}, 1.0), ({"clip_norm": None}, None)):
        job = Job.model_validate({**own, "train": {"steps": 4, "optimizer": {"kind": "own"}, **train}})
        assert job.train.clip_norm == clip_norm
        assert parse_job(dump_job(job)) == job
    assert Job.model_validate(job.model_dump(by_alias=True)) == job
    assert Train(steps=4, optimizer=OwnOptimizer(kind="own")).clip_norm is None
    assert Train(steps=4, optimizer=AdamW(kind="adamw", lr=1e-3)).clip_norm == 1.0


class LaterObjective(Objective):
    """An added objective without a description of its reference."""

    kind: Literal["later"]


class LaterJob(Job):
    objective: LaterObjective | SimpoObjective


def test_an_objective_that_declares_no_reference_fails_at_the_jobs_birth():
    """It is not trained against a uniform reference that the job did not ask for."""
    rest = parse_job(MINIMAL).model_dump(by_alias=True) | {"data": {"kind": "pairs", "path": "x"}}
    assert LaterJob.model_validate(rest | {"objective": {"kind": "simpo"}}).reference.source == "none"
    with pytest.raises(ValidationError, match=r"found objective later\. Write one of lm, sft, dpo"):
        LaterJob.model_validate(rest | {"objective": {"kind": "later"}})
    with pytest.raises(TypeError, match="reference"):
        ObjectiveSpec(config=LaterObjective, samples=("pairs",), build="later:Later")


@pytest.mark.parametrize("spec", OURS.values(), ids=OURS)
def test_every_objective_declares_its_reference(spec):
    """As a field, or as a constant. A required one is there by default."""
    found = spec.reference_of(spec.config(kind=spec.kind))
    assert found.source in get_args(ReferenceSource)
    assert (found.source == "none") == (spec.reference == "none")
    assert found.model is None


def test_a_dump_holds_every_key_under_its_yaml_name():
    dumped = dump_job(parse_job(MINIMAL))
    assert "batch:\n  global: 32\n  max_micro: 4\n" in dumped
    assert "betas: [0.9, 0.999]" in dumped
    assert "path: python-stdlib" in dumped
    assert dump_job(parse_job(dumped)) == dumped


# --- weight -----------------------------------------------------------------------------------------------


@pytest.mark.process
def test_reading_a_job_loads_nothing_heavy():
    """`planner plan` answers in 300 ms."""
    code = "import sys, planner.files; print(sorted({'torch', 'ray', 'numpy', 'difflib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_job_that_a_run_has_kept_is_a_job_file():
    """It has its format number. Another one is refused with both numbers."""
    job = parse_job(MINIMAL)
    kept = job_file(job).decode()
    assert parse_job(kept) == job
    with pytest.raises(JobError, match=r"format: written by another version of planner \(format 2, this one reads 1\)"):
        parse_job(kept.replace('"format":1', '"format":2'))
