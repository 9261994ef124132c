"""The job files that come with the product: each can be planned anywhere, and the small ones learn what they say."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from planner.data.open import open_dataset
from planner.data.samples import Pair
from planner.files import read_job
from planner.job import batch_sizes
from planner.plan import make_plan
from planner.provenance.identity import open_data

JOBS = Path(__file__).parents[2] / "jobs"
METHODS = ("sft", "dpo", "ipo", "simpo", "kto")


def made_job(method, words, *settings):
    """The job as it is, with its data where `words` is."""
    job = read_job(JOBS / f"{method}.yaml")
    return read_job(JOBS / f"{method}.yaml", [f"data.path={words / Path(job.data.path).name}", *settings])


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """What the script makes."""
    folder = tmp_path_factory.mktemp("data") / "words"
    done = subprocess.run(
        [sys.executable, "-I", JOBS / "make_data.py", folder], check=True, capture_output=True, text=True
    )
    assert done.stdout == (
        f"6000 rows each in {folder}: chat.json, chat.jsonl, feedback.json, feedback.jsonl, pairs.json, pairs.jsonl\n"
    )
    return folder


@pytest.mark.parametrize("file", sorted(JOBS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_every_job_is_exact_at_any_count(file):
    """Read as it is, it has a plan of exactly its global batch at 1 to 16 workers."""
    job = read_job(file)
    for count in range(1, 17):
        plan = make_plan(batch_sizes(job), count)
        assert sum(workers * samples for workers, samples in plan.shares) == job.batch.global_batch


# The full-size jobs, and the recipes that they mirror, as the table of recipes has them.
FULL = {
    "zephyr-7b-sft": "hb-zephyr-7b-beta-sft-config_full",
    "zephyr-7b-dpo": "hb-zephyr-7b-beta-dpo-config_full",
    "pythia-6.9b-dpo": "dpo-3-dpo-pythia69-hh",
    "llama-3-8b-kto": "halos-readme-2-kto",
    "smollm3-3b-sft": "hb-readme-smollm3-sft-sft",
}


def test_every_full_size_job_has_a_recipe():
    """And no recipe is named in vain."""
    assert {file.stem for file in (JOBS / "full").glob("*.yaml")} == set(FULL)


@pytest.mark.parametrize("name", FULL)
def test_a_full_size_job_is_its_recipe(name):
    """What one step uses, at what rate, for how long, of how many tokens, and what a GPU held."""
    with (Path(__file__).parents[1] / "recipes" / "recipes.csv").open(newline="") as file:
        recipe = next(row for row in csv.DictReader(file) if row["id"] == FULL[name])
    job = read_job(JOBS / "full" / f"{name}.yaml")
    assert job.name == name
    assert job.objective.kind == recipe["method"]
    assert job.batch.global_batch == int(recipe["global_batch"])
    assert job.batch.max_micro == int(recipe["per_device_train_batch"])
    assert job.model.path == recipe["model"]
    assert job.model.context == int(recipe["max_length"])
    assert getattr(job.data, "packing", False) == (recipe["packing"] == "True")
    assert job.train.optimizer.lr == float(recipe["lr"])
    assert job.train.optimizer.kind == recipe["optimizer"].split()[0].split("_")[0].lower()
    assert job.train.schedule.kind in recipe["lr_scheduler"]
    number, unit = re.match(r"([0-9.]+) (?:of |optimizer )?(steps)", recipe["warmup"]).groups()
    written = f"{float(number):.0%}" if float(number) < 1 else f"{number} {unit}"
    assert job.train.schedule.warmup == written
    assert f"{job.train.epochs:g} epoch" == recipe["duration"]


# -- the small data sets


@pytest.mark.process
def test_both_formats_hold_the_same_conversations(words):
    """TRL's and HALOs' rows make the same samples, to the byte."""
    job = made_job("sft", words)
    ours, theirs = (
        open_dataset(job.data.model_copy(update={"path": str(words / name)}), job.model)
        for name in ("chat.jsonl", "chat.json")
    )
    assert ours.num_rows == theirs.num_rows == 6000
    assert ours.fingerprint == theirs.fingerprint


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_both_formats_of_judged_completions_can_be_read(words, method):
    """Equally many, with the same verdicts; the prompts of HALOs are messages, and so other bytes."""
    job = made_job(method, words)
    theirs = job.data.model_copy(update={"path": job.data.path.removesuffix("l")})
    model = job.model.model_copy(update={"context": 48})
    here, there = (open_dataset(data, model) for data in (job.data, theirs))
    assert here.num_rows == there.num_rows == 6000
    for row in range(0, 6000, 97):
        assert [answer(each) for each in parts(here.sample(row))] == [answer(each) for each in parts(there.sample(row))]
        assert getattr(here.sample(row), "is_desirable", None) == getattr(there.sample(row), "is_desirable", None)


def parts(sample):
    return (sample.chosen, sample.rejected) if isinstance(sample, Pair) else (sample.text,)


def answer(text):
    """What is behind the prompt, as letters."""
    return bytes(text.labels[text.labels >= 0].astype(np.uint8)).rstrip(b"\0").decode()


def test_nothing_but_the_prompt_tells_right_from_wrong(words):
    """Every right answer could be somebody else's wrong one: of the same length, the same case, and words come once."""
    rows = [json.loads(line) for line in (words / "pairs.jsonl").read_text().splitlines()]
    assert len({row["prompt"].split()[1] for row in rows}) == len(rows)
    for row in rows:
        request, word = row["prompt"].removesuffix(": ").split()
        assert row["chosen"] == (word.upper() if request == "upper" else word)
        assert row["rejected"] != row["chosen"]
        assert len(row["rejected"]) == len(row["chosen"])
        assert row["rejected"].isupper() == row["chosen"].isupper()
    labels = [json.loads(line)["label"] for line in (words / "feedback.jsonl").read_text().splitlines()]
    assert 0.45 < sum(labels) / len(labels) < 0.55


# -- training on them


@pytest.mark.fsdp
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_history_does_not_matter_to_the_bit(words, tmp_path, method):
    """`planner verify jobs/METHOD.yaml --history 3,5,2 --steps 6 --set batch.equality=bitwise`."""
    from planner.runner.verify_job import rehearsal_of, through_processes

    job = rehearsal_of(made_job(method, words, "batch.equality=bitwise"), 6)
    checks = through_processes(job, [3, 5, 2], tmp_path)
    assert [check for check in checks if not check.passed] == []


@pytest.mark.fsdp
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_each_method_learns_its_task(words, tmp_path, method):
    """On 3 workers; at the end more than nine of ten held-out words are answered or judged rightly."""
    from planner.rehearsal.local_workers import LocalWorkers
    from planner.train.setup import Launch

    job = made_job(method, words)
    with LocalWorkers(3) as workers:
        assert workers.run(train_to_the_end, 3, Launch(job=job, url=str(tmp_path)))[0].finished
    first, *_, last = evaluations(tmp_path)
    assert last["loss"] < first["loss"] / 2
    if method == "sft":
        assert answered(job, tmp_path) > 0.9
    elif method == "kto":
        assert last["metrics"]["desirable_reward"] > 1 > -1 > last["metrics"]["undesirable_reward"]
        assert preferred(job, tmp_path, words) > 0.9
    else:
        assert first["metrics"]["reward_accuracy"] < 0.6
        assert last["metrics"]["reward_accuracy"] > 0.9
        assert last["metrics"]["reward_margin"] > first["metrics"]["reward_margin"] + 0.2


def train_to_the_end(rank, launch):
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.world import cpu_device

    del rank
    return train(launch, cpu_device, Hooks())


def evaluations(url):
    """The held-out loss and metrics, in the order of steps."""
    lines = [line for file in sorted(Path(url, "ledger").iterdir()) for line in file.read_text().splitlines()]
    found = [json.loads(line)["record"] for line in lines]
    return [record for record in found if record["kind"] == "eval"]


def trained(job, url):
    """The model before the first step and after the last one, whole."""
    from planner.store.run_folder import RunFolder
    from planner.store.storage import Storage
    from planner.train.checkpoints.checkpoint import read
    from planner.train.shard import build_model

    run = RunFolder(Storage(str(url)))
    before, after = (build_model(job.model, job.train).eval() for _ in range(2))
    state = read(run.storage, run.manifest(run.commits()[-1]), "model/")
    after.load_state_dict({name.removeprefix("model/"): tensor for name, tensor in state})
    return before, after


def held_out(job):
    """The rows that were never trained on."""
    dataset, order = open_data(job)
    return [dataset.sample(int(row)) for row in order.held_out_rows(0, order.num_held_out)]


def answered(job, url):
    """The share of held-out requests that greedy decoding answers to the letter."""
    import torch

    _, model = trained(job, url)
    num_right = 0
    for text in held_out(job):
        first = int(np.argmax(text.labels >= 0))  # the input that the first letter is predicted from
        tokens = torch.tensor(text.inputs[: first + 1]).long()
        for _ in text.labels[first:]:
            with torch.no_grad():
                tokens = torch.cat([tokens, model(tokens[None])[0, -1].argmax().view(1)])
        num_right += tokens[first + 1 :].tolist() == text.labels[first:].tolist()
    return num_right / job.eval.samples


def preferred(job, url, words):
    """The share of held-out words whose right answer has the higher reward. Row i is of word i in every file."""
    from planner.train.log_probs import log_probs, no_training
    from planner.train.sample_batches import Sequences

    before, after = trained(job, url)
    pairs = held_out(made_job("dpo", words))
    rewards = []
    for side in ("chosen", "rejected"):
        sequences = Sequences.of([getattr(pair, side) for pair in pairs])
        with no_training(after), no_training(before):
            rewards.append(log_probs(after, sequences) - log_probs(before, sequences))
    return float((rewards[0] > rewards[1]).float().mean())
