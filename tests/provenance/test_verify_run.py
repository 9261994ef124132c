"""`docs/verify_run.py`, which needs no planner: what it prints, and that it reads data as planner does.

The faults that it finds are in `forging.py`.
"""

import json
import re
import shutil
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from byte_models import gpt
from events import EVENT_S
from forging import FAULTS, NEWEST
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import MadeUpRun, make_job
from rows_of import all_bytes
from sample_sets import write_rows
from tiny_tokenizers import word_level
from verifiers import SCRIPT, audited, load_script, run_script

from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.job import ChatData, FeedbackData, GptModel, HfModel, JsonlData, PairsData, TextData, TokensData
from planner.order.order import Order
from planner.store.records import joint_digest


def verified(run, *options):
    """Exit code and output. The data of the recorded run is beside its folder."""
    return run_script(run, "--data", run.parent / "rows.jsonl", *options)


def wrong(output):
    return [line for line in output.splitlines() if line.startswith("WRONG ")]


# -- what it prints


@pytest.mark.process
def test_it_needs_nothing_but_the_standard_library(run):
    """Isolated, without site packages, and from another folder. It finds a fault, too."""

    def start(*words):
        command = [sys.executable, "-I", "-S", str(SCRIPT), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd="/", timeout=EVENT_S)

    data = ("--data", run.parent / "rows.jsonl")
    clean = start(run, *data)
    assert (clean.returncode, clean.stderr) == (0, "")
    assert clean.stdout == verified(run)[1]
    FAULTS["a forged checksum"].plant(run)
    harmed = start(run, *data)
    assert (harmed.returncode, harmed.stderr) == (1, "")
    assert harmed.stdout == verified(run)[1]
    assert start(run, "--nonsense").returncode == 2


def test_it_agrees_with_the_audit_on_a_clean_run(history):
    """Generations, steps and samples. The hash is the one that `planner verify` prints."""
    ours = audited(history)
    assert ours.clean, ours.findings
    assert [(phase.world_size, phase.first_step, phase.end_step) for phase in ours.phases] == [
        (4, 0, 4),
        (3, 4, 8),
        (2, 8, 12),
    ]
    assert [phase.from_memory for phase in ours.phases] == [False, False, True]
    assert [phase.recomputed_before for phase in ours.phases] == [0, 3, 1]
    assert (ours.steps, ours.samples, ours.recomputed, ours.uncommitted) == (12, 60, 4, 0)
    code, output = verified(history)
    assert code == 0, output
    assert f"{ours.steps} steps used positions [0, {ours.samples})" in output
    for phase in ours.phases:
        place = f"steps [{phase.first_step}, {phase.end_step}){', from memory' * phase.from_memory}"
        assert f"generation {phase.generation}: {phase.world_size} workers, {place}\n" in output
    tensors = json.loads((history / "manifests" / f"{NEWEST}.json").read_text())["value"]["tensors"]
    full = joint_digest({name: digest for name, digest in tensors.items() if name.startswith("model/")})
    assert f"weights SHA-256 {full}, on record" in output
    assert full == ours.weights


def test_it_lists_the_rows_of_every_step(history):
    """As the order has them. Each step of the lineage is listed once, recomputed or not."""
    order = Order(num_rows=40, num_held_out=4, seed=5)
    _, output = verified(history, "--list")
    assert [line for line in output.splitlines() if line.startswith("step ")] == [
        f"step {step}, generation {generation}: rows {' '.join(map(str, order.rows(5 * step, 5 * step + 5)))}"
        for step, generation in enumerate([1] * 4 + [3] * 4 + [4] * 4)
    ]


@pytest.mark.parametrize("pattern", ["", "/*.txt", "/a.txt"])
def test_text_is_read_as_planner_reads_it(tmp_path, pattern):
    """A folder, a glob and a file. The last row is shorter, rows run over the ends of files, one file is empty."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, size in {"a.txt": 700, "b.txt": 0, "c-é.txt": 613}.items():
        (corpus / name).write_bytes(bytes(i * i % 251 for i in range(size)))
    made = MadeUpRun(tmp_path, job=make_job({"kind": "text", "path": f"{corpus}{pattern}"}))
    made.begin(1).steps(6).commit()
    assert audited(made.run.storage.url).clean
    code, output = run_script(made.run.storage.url)
    assert code == 0, output
    assert "weights no SHA-256 is on record" in output  # it is no bitwise run


def test_other_pairs_are_found_in_a_few_lines(tmp_path):
    """In rows of TRL's format. The first steps that are wrong stand for the others."""
    rows = Path(write_rows(tmp_path / "rows.jsonl", "pairs"))
    job = make_job({"kind": "pairs", "path": str(rows)}, objective={"kind": "dpo"}, model={"context": 24})
    made = MadeUpRun(tmp_path, job=job).begin(2).steps(1).commit()
    made.begin(1, made.name).steps(7).commit()
    run = Path(made.run.storage.url)
    assert audited(run).clean
    code, output = run_script(run)
    assert code == 0, output
    assert "verify_run: clean. 8 steps used positions [0, 24)" in output
    rows.write_text(rows.read_text().replace("a", "z"))
    code, output = run_script(run)
    assert code == 1
    assert output.count("what entered the forward pass is not the samples") == 1 + 5
    assert "WRONG generation 1: the data at" in output
    assert "WRONG generation 1: ... and" not in output
    assert "WRONG generation 2: ... and 2 more of this kind" in output


def test_a_wrong_seed_is_found_at_every_step(run):
    """A generation's first five are shown, and the rest are counted."""
    FAULTS["a forged seed"].plant(run)
    code, output = verified(run)
    assert code == 1
    shown = output.count("what entered the forward pass is not the samples")
    assert shown + sum(int(more) for more in re.findall(r"and (\d+) more of this kind", output)) == 12


@pytest.mark.parametrize("setting", [{"packing": True}, {"tokenize": "on_demand"}])
def test_samples_that_it_does_not_make_have_a_verdict_of_their_own(tmp_path, setting):
    """Neither clean nor not. What is wrong beside them is still found."""
    path = write_rows(tmp_path / "rows.jsonl", "chat")
    job = make_job({"kind": "chat", "path": str(path)} | setting, objective={"kind": "sft"}, model={"context": 24})
    made = MadeUpRun(tmp_path, job=job).begin(1).steps(7).commit()
    run = Path(made.run.storage.url)
    code, output = run_script(run)
    assert code == 3, output
    assert f"samples NOT CHECKED: they were made by rows with data.{next(iter(setting))}" in output
    assert output.splitlines()[-1].startswith("verify_run: good but for the samples. 7 steps used positions [0, 21)")
    FAULTS["a line removed"].plant(run)
    assert run_script(run)[0] == 1


def test_the_data_may_be_elsewhere(run, tmp_path):
    """At another path than during the run. The name of the file counts."""
    elsewhere = shutil.copy(run.parent / "rows.jsonl", tmp_path / "rows.jsonl")
    (run.parent / "rows.jsonl").unlink()
    code, output = run_script(run, "--data", elsewhere)
    assert code == 0, output
    renamed = Path(elsewhere).rename(tmp_path / "renamed.jsonl")
    code, output = run_script(run, "--data", renamed)
    assert code == 1
    assert "is not what it was trained on" in output
    assert "what entered the forward pass" not in output


def test_one_letter_of_the_data_is_found_in_the_steps_that_used_it(run):
    """Once in an epoch. Nothing else is wrong with the steps."""
    row = int(Order(num_rows=40, num_held_out=4, seed=5).rows(5 * 7, 5 * 7 + 1)[0])
    file = run.parent / "rows.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[row] = lines[row].replace(f'"{row} ', f'"{row}.')
    file.write_text("".join(lines))
    code, output = verified(run)
    assert code == 1
    named = [line for line in wrong(output) if "what entered the forward pass" in line]
    assert 1 <= len(named) <= 2
    assert any("step 7: " in line for line in named)


def test_of_two_steps_that_change_places_each_is_named(run):
    """Nothing else is wrong."""
    FAULTS["two steps that change places"].plant(run)
    code, output = verified(run)
    assert code == 1
    assert wrong(output) == [
        "WRONG generation 1: step 2: what entered the forward pass is not the samples at [10, 15)",
        "WRONG generation 1: step 3: what entered the forward pass is not the samples at [15, 20)",
    ]


def test_wrong_usage_is_told_apart(run):
    """No folder, no argument, an unknown option."""
    assert run_script(run / "none")[0] == 2
    assert run_script(run, "--dat")[0] == 2
    assert run_script(run, "--nonsense")[0] == 2
    assert run_script()[0] == 2


# -- that it reads data as planner does


@pytest.fixture(scope="module")
def script():
    """The script as a module, by its path."""
    return load_script()


@given(
    num_rows=st.one_of(st.integers(1, 80), st.integers(1, 2**40)),
    held_out=st.integers(0, 50),
    seed=st.integers(0, 2**64 - 1),
    start=st.one_of(st.integers(0, 500), st.integers(0, 2**50)),
)
def test_its_order_is_ours(script, num_rows, held_out, seed, start):
    """For any size, held-out part, seed and place."""
    held_out = min(held_out, num_rows - 1)
    rows = Order(num_rows=num_rows, num_held_out=held_out, seed=seed).rows(start, start + 20)
    assert [script.row_at(p, num_rows, held_out, seed) for p in range(start, start + 20)] == rows.tolist()
    assert rows.dtype == np.int64


def of_bytes(kind, path, context, **settings):
    data = {"text": TextData, "jsonl": JsonlData, "tokens": TokensData}[kind](kind=kind, path=str(path), **settings)
    return open_dataset(data, gpt(context))


def same_data(script, dataset, path, field):
    rows, fingerprint = script.read_data(path, field, dataset.context)
    assert (len(rows), fingerprint) == (dataset.num_rows, dataset.fingerprint)
    for row in (*range(0, len(rows), 997), len(rows) - 1):
        assert rows[row] == all_bytes(dataset.sample(row))
    same_lengths(script, rows, dataset)


def same_lengths(script, samples, dataset):
    """What `batch.max_tokens` counts of each row."""
    rows = range(0, len(samples), max(len(samples) // 1000, 1))
    documents = [script.documents_of(samples[row]) for row in rows]
    ours = dataset.lengths(rows)
    assert [sum(each) for each in documents] == ours.tokens.tolist()
    assert [sum(length**2 for length in each) for each in documents] == ours.squares.tolist()


def test_its_standard_library_is_ours(script):
    """The demo's data."""
    same_data(script, of_bytes("text", "python-stdlib", 1000), "python-stdlib", "")


def test_its_jsonl_is_ours(script, tmp_path):
    """Blank lines, other line ends, no end of line, texts beyond ASCII and beyond the context, folders in a glob."""
    for name, content in {
        "b/1.jsonl": '{"t": "\\u00e9\\n"}\r\n\n \t\n{"t": "äöü日本"}',
        "a/2.jsonl": '{"t": ""}\n',
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content.encode())
    for path in (tmp_path, f"{tmp_path}/*/*.jsonl"):
        same_data(script, of_bytes("jsonl", path, 9, field="t"), str(path), "t")


TURNS = [{"role": "system", "content": "be brief", "name": None}, {"role": "user", "content": "2 + 2, ä?"}]
FOUR, FIVE = ({"role": "assistant", "content": word} for word in ("four\u2028!", "five"))
SPOKEN = [*TURNS, FOUR, {"role": "user", "content": "and 3?"}, FIVE]
HALOS = {"type": "pairwise_feedback", "prompt": TURNS, "output_A": [FIVE], "output_B": [FOUR], "label": 0}
PAIRS = [
    [{"prompt": "what is 2 + 2?", "chosen": "four", "rejected": "five, not four"}],
    [{"prompt": "a text", "chosen": [*TURNS, FOUR], "rejected": [*TURNS, FIVE]}],
    [{"prompt": TURNS, "chosen": [FOUR], "rejected": [FIVE]}],
    [HALOS, {**HALOS, "label": True}],
]
ROWS = {
    "chat": [
        [{"messages": SPOKEN}, {"messages": [FOUR], "prompt": None}],
        [{"prompt": "2 + 2 is ", "completion": "four"}],
        [{"prompt": TURNS, "completion": [FOUR]}],
        [{"type": "sample", "prompt": TURNS, "output": [FIVE]}],
        *PAIRS,
    ],
    "pairs": PAIRS,
    "feedback": [
        *PAIRS,
        [{"prompt": "2 + 2 is ", "completion": "four", "label": True}, {"prompt": "3", "completion": "4", "label": 0}],
        [{"type": "binary_feedback", "prompt": TURNS, "output": [FIVE], "label": 0}],
    ],
}


@pytest.mark.parametrize(("kind", "rows"), [(kind, rows) for kind in ROWS for rows in ROWS[kind]])
@pytest.mark.parametrize("as_array", [False, True])
def test_its_rows_are_ours(script, tmp_path, kind, rows, as_array):
    """Every form that rows come in, whole and cut at either end, with the loss on completions and on all."""
    path = tmp_path / "rows"
    path.write_text(json.dumps(rows) if as_array else "".join(json.dumps(row) + "\n\n" for row in rows))
    made = {"chat": ChatData, "pairs": PairsData, "feedback": FeedbackData}[kind]
    losses = [{"loss_on": "completions"}, {"loss_on": "all"}] if kind == "chat" else [{}]
    for loss in losses:
        for context, most, side in [(200, None, "start"), (16, 7, "start"), (16, 7, "end"), (12, 1, "start")]:
            model = GptModel(kind="gpt", layers=1, width=8, heads=1, context=context)
            data = made(kind=kind, path=str(path), max_prompt=most, cut_prompt=side, **loss)
            ours = open_dataset(data, model)
            job = {"data": data.model_dump(), "model": model.model_dump()}
            samples, fingerprint = script.read_any(job, str(path))
            assert (len(samples), fingerprint) == (ours.num_rows, ours.fingerprint)
            for row, sample in enumerate(samples):
                tokens, fed = script.fed(sample)
                digest = blake2b(row.to_bytes(8, "little") + fed, digest_size=8).digest()
                assert (tokens, int.from_bytes(digest, "little")) == ours.evidence(row)
            same_lengths(script, samples, ours)


def test_its_texts_are_ours(script, tmp_path):
    """TRL's column `text`, which has no completions."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "two words"}\n{"text": ""}\n')
    model = GptModel(kind="gpt", layers=1, width=8, heads=1, context=6)
    data = ChatData(kind="chat", path=str(path), loss_on="all")
    ours = open_dataset(data, model)
    samples, fingerprint = script.read_any({"data": data.model_dump(), "model": model.model_dump()}, str(path))
    assert fingerprint == ours.fingerprint
    assert [script.fed(sample)[0] for sample in samples] == [ours.evidence(row)[0] for row in range(2)]


@pytest.mark.parametrize(
    "settings",
    [{"packing": True}, {"split": "train"}, {"bad_rows": "skip"}, {"tokenize": "on_demand"}, {"loader": "dpo/hh"}],
)
def test_what_it_does_not_read_it_says(script, tmp_path, settings):
    """It is neither right nor wrong."""
    data = ChatData(kind="chat", path=str(tmp_path), **settings).model_dump()
    with pytest.raises(script.Unread):
        script.read_any({"data": data, "model": {"kind": "gpt", "context": 8}}, str(tmp_path))
    with pytest.raises(script.Unread, match="a tokenizer"):
        script.read_any({"data": data, "model": {"kind": "hf", "context": 8}}, str(tmp_path))
    with pytest.raises(script.Unread, match="data of kind 'translation', which another package brings"):
        script.read_any({"data": {"kind": "translation"}, "model": {"kind": "gpt", "context": 8}}, str(tmp_path))


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_its_token_files_are_ours(script, history, tmp_path, kind):
    """Of a stream and of rows; and it takes the whole file's digest, of which an opening looks at parts."""
    texts = str(history.parent / "rows.jsonl")
    source = TextData(kind="text", path=texts) if kind == "text" else JsonlData(kind="jsonl", path=texts)
    path = tmp_path / "tokens"
    prepare(source, path)
    dataset = of_bytes("tokens", path, 40)
    rows, fingerprint = script.read_data(str(path), "", 40, "tokens")
    assert fingerprint == dataset.fingerprint
    assert rows == [all_bytes(dataset.sample(row)) for row in range(dataset.num_rows)]
    same_lengths(script, rows, dataset)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(script.Wrong, match="torn, altered"):
        script.read_tokens(str(path), 40)
    with pytest.raises(script.Wrong, match="no token file"):
        script.read_tokens(texts, 40)


@pytest.mark.parametrize("size", [300, 65_537])
@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_its_documents_of_a_token_file_are_ours(script, tmp_path, documents, size):
    """Windows and documents, of 16 and of 32 bits, without the tokenizer that made them."""
    model = HfModel(kind="hf", path=str(word_level(tmp_path / "model", size)), context=5)
    rows = [[size - 1 - row * 7 - word for word in range(row)] for row in (1, 2, 9, 3, 12, 1)]
    texts = [json.dumps({"text": " ".join(f"w{number}" for number in row)}) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(texts))
    path = tmp_path / "tokens"
    prepare(JsonlData(kind="jsonl", path=str(tmp_path / "rows.jsonl")), path, model=model)
    data = TokensData(kind="tokens", path=str(path), documents=documents)
    ours = open_dataset(data, model)
    job = {"data": data.model_dump(), "model": {**model.model_dump(), "path": "not here"}}
    samples, fingerprint = script.read_any(job, str(path))
    assert (len(samples), fingerprint) == (ours.num_rows, ours.fingerprint)
    for row in range(ours.num_rows):
        tokens, content = script.fed(samples[row])
        digest = blake2b(row.to_bytes(8, "little") + content, digest_size=8).digest()
        assert (tokens, int.from_bytes(digest, "little")) == ours.evidence(row)
    same_lengths(script, samples, ours)
    for context, read in [(6, documents), (5, "join" if documents == "mask" else "mask")]:
        assert script.read_tokens(str(path), context, read)[1] != fingerprint
    with pytest.raises(script.Wrong, match="of other tokens than the model reads"):
        script.read_tokens(str(path), 5)


@pytest.mark.slow
@pytest.mark.parametrize("more_bytes", [0, 1, 12_345_678])
def test_its_fingerprint_of_large_data_is_ours(script, tmp_path, more_bytes):
    """Up to 1 GiB it is of the whole, above it is of blocks; here of two files with something in every block."""
    with (tmp_path / "a.txt").open("wb") as stream:
        for start in range(0, 2**30, 2**16):
            stream.seek(start)
            stream.write(start.to_bytes(8))
        stream.truncate(2**30 - 5 + more_bytes)
    (tmp_path / "b.txt").write_bytes(b"words")
    same_data(script, of_bytes("text", tmp_path, 2**20), str(tmp_path), "")
