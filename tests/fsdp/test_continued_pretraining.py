"""Continued pretraining on text and on its token file: the losses of plain transformers, at every world size."""

import json
from functools import cache

import pytest
import torch
from tiny_tokenizers import byte_level
from torch.nn.utils.rnn import pad_sequence
from verifiers import run_script
from worker_functions import make_job, records, run_job

from planner.data.prepare_tokens import prepare
from planner.job import HfModel, Job, TextData
from planner.order.order import Order
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp

STEPS, BATCH, CONTEXT, RATE = 20, 7, 16, 3e-3
CORPUS = [
    "".join(f"{name} the fox, {number * step} jumps over {number} dogs.\n" for number in range(1 + step % 5))
    for step, name in enumerate(["hello", "naïve", "The quick brown", "日本語", "a", "lazy", "system"] * 5)
]


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny Llama with weights and a tokenizer."""
    tokenizer = byte_level(tmp_path_factory.mktemp("tokenizer") / "bpe", None)
    size = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    folder = tiny_model("llama", vocab_size=size)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    return HfModel(kind="hf", path=str(folder), context=CONTEXT)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of text files, each of which is a document."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(CORPUS):
        (folder / f"{number:03d}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def tokens(corpus, model, tmp_path_factory):
    """The corpus as a token file."""
    file = tmp_path_factory.mktemp("tokens") / "corpus.tokens"
    prepare(TextData(kind="text", path=str(corpus)), file, model=model)
    return file


def job_of(model, documents, kind, path, equality="balanced"):
    train = {"steps": STEPS, "optimizer": {"kind": "adamw", "lr": RATE}}
    job = make_job(str(path), global_batch=BATCH, train=train, batch={"equality": equality})
    sections = job.model_dump(by_alias=True, mode="json")
    data = {"kind": kind, "path": str(path), "documents": documents}
    return Job.model_validate({**sections, "model": model.model_dump(), "data": data})


def samples_of(model, documents):
    """What plain transformers is given of each sample: sequences whose tokens but the first are predicted."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path)
    whole = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in CORPUS]
    if documents == "separate":
        return [[each[: CONTEXT + 1]] for each in whole]
    joined = [(number, token) for number, each in enumerate(whole) for token in each]
    windows = [joined[start : start + CONTEXT + 1] for start in range(0, len(joined) - 1, CONTEXT)]
    if documents == "join":
        return [[[token for _, token in window]] for window in windows]
    return [
        [[token for found, token in window if found == number] for number in sorted({found for found, _ in window})]
        for window in windows
    ]


@cache
def losses_of_transformers(model, documents):
    """A plain loop: the sequences of a step in one pass, each a row. The sum is divided by their predicted tokens."""
    from transformers import AutoModelForCausalLM

    samples = samples_of(model, documents)
    order = Order(num_rows=len(samples), num_held_out=0, seed=0)
    hf = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(hf.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        rows = order.rows(step * BATCH, (step + 1) * BATCH)
        sequences = [torch.tensor(each) for row in rows for each in samples[int(row)]]
        num_tokens = sum(len(each) - 1 for each in sequences)
        inputs, labels = (pad_sequence(sequences, batch_first=True, padding_value=value) for value in (0, -100))
        loss = hf(input_ids=inputs, labels=labels, num_items_in_batch=num_tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_losses_are_those_of_plain_transformers(workers, model, corpus, tokens, tmp_path, documents):
    """Twenty steps on 2 workers, on 3, and on 3 then 2 with a resume in between; of text, and of its token file."""
    expected = losses_of_transformers(model, documents)
    text = job_of(model, documents, "text", corpus)
    workers.run(run_job, 2, text, str(tmp_path / "2"))
    workers.run(run_job, 3, job_of(model, documents, "tokens", tokens), str(tmp_path / "3"))
    workers.run(run_job, 3, text, str(tmp_path / "history"), 9)
    workers.run(run_job, 2, text, str(tmp_path / "history"))
    sums = []
    for name in ("2", "3", "history"):
        steps = records(tmp_path / name)
        assert [step["loss"] for step in steps] == pytest.approx(expected, rel=1e-6), name
        found = audit(RunFolder(Storage(str(tmp_path / name))))
        assert found.clean, found.findings
        # Of text, the script says that it runs no tokenizer.
        assert run_script(tmp_path / name)[0] == (0 if name == "3" else 3)
        sums.append([(step["tokens"], step["checksum"]) for step in steps])
    assert sums[0] == sums[1] == sums[2]
    assert expected[-1] < 0.8 * expected[0]  # it learns, so that the last losses depend on the first updates


@pytest.mark.parametrize("documents", ["join", "mask"])
def test_the_bits_do_not_depend_on_the_world_size(workers, model, corpus, tmp_path, documents):
    """In bitwise runs on 1 to 5 workers: every loss and the digest of the last weights."""
    job = job_of(model, documents, "text", corpus, equality="bitwise")
    found = set()
    for world_size in range(1, 6):
        url = str(tmp_path / str(world_size))
        workers.run(run_job, world_size, job, url)
        run = RunFolder(Storage(url))
        losses = tuple(step["loss"] for step in records(url))
        found.add((losses, run.manifest(run.commits()[-1]).weights_digest))
    ((losses, digest),) = found
    assert digest
    assert losses == pytest.approx(losses_of_transformers(model, documents), rel=1e-5)


def test_ways_to_make_samples_differ(model):
    """Else the tests above would not tell them apart."""
    losses = [losses_of_transformers(model, documents) for documents in ("join", "mask", "separate")]
    for one, other in [(0, 1), (1, 2), (0, 2)]:
        assert max(abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)) > 1e-2
