"""Every shipped recipe is exact in planner at 1 to 16 GPUs, and its own system does what the document says."""

import re
from pathlib import Path

import pytest
from recipes import rows, write

from planner.files import parse_job
from planner.job import batch_sizes
from planner.plan import make_plan
from planner.recipes import RecipeOptions, job_of, read_recipe

IDS = [row["id"] for row in rows()]
COUNTS = range(1, 17)
# Keys whose values are in the lists under other names, or in the report's first line.
SAID_OTHERWISE = {
    "model": "its path",
    "loss": "the method",
    "name_or_path": "model.path of whom",
    "per_device_train_batch_size": "a factor of batch.global",
    "gradient_accumulation_steps": "a factor of batch.global",
    "dataset_mixture": "the names of its data sets",
    "datasets": "their names",
    "dataset_name": "its name",
    "dataset_train_split": "its name and split",
    "train_datasets": "their names",
    "eval_strategy": "whether there is eval.every",
    "beta": "of the objective",
}


def read(recipe, **more):
    halos = "total" if recipe.system == "HALOs" else None
    gpus = None if recipe.system == "HALOs" else recipe.gpus
    return read_recipe(recipe.path, recipe.arguments, RecipeOptions(gpus=gpus, halos_batch=halos, **more))


@pytest.mark.parametrize("name", IDS)
def test_it_is_converted_and_exact_at_every_count(shipped, name):
    """The job is read back as `planner plan` reads it. Each plan's micro-batches have each sample of the batch once."""
    recipe = shipped[name]
    found = read(recipe)
    job, text = job_of(found)
    assert parse_job(text) == job
    assert job.batch.global_batch == recipe.global_batch == found.global_batch
    for count in COUNTS:
        plan = make_plan(batch_sizes(job), count)
        positions = [at for rank in range(count) for batch in plan.micro_batches(rank) for at in batch]
        assert sorted(positions) == list(range(recipe.global_batch))
        assert plan.max_micro_batch <= job.batch.max_micro


@pytest.mark.parametrize("name", IDS)
def test_nothing_of_it_is_lost_without_a_word(shipped, name):
    """Each key of the recipe is listed as carried over, derived, dropped or to do."""
    recipe = shipped[name]
    draft = read(recipe).draft
    notes = [*draft.carried, *draft.derived, *draft.dropped]
    said = " ".join([*(f"{note.key} {note.text}" for note in notes), *map(str, draft.to_do)])
    text = Path(recipe.path).read_text()
    keys = re.findall(
        r"^([a-z_]+):" if recipe.is_trl else r"(?:^| )(?:\+\+)?(?:model\.|loss\.)?([a-z_]+)=", text, re.MULTILINE
    )
    assert keys
    assert not [key for key in keys if key not in said and key not in SAID_OTHERWISE]


@pytest.mark.parametrize("name", IDS)
def test_what_its_own_system_does_at_each_count(shipped, name):
    """Compared with the rules of the document: slicing, divisibility with the evaluation batch, W * m * A."""
    recipe, found = shipped[name], read(shipped[name])
    for count in COUNTS:
        outcome = found.foreign.outcome(count)
        assert (outcome.verdict, outcome.batch) == expected(recipe, count), (name, count)


def expected(recipe, count):
    """Verdict and batch."""
    batch, steps = recipe.global_batch, recipe.accumulation
    if recipe.is_trl:
        used = batch // recipe.gpus * count
    elif recipe.system == "HALOs":
        divides = batch % (count * steps) == 0 and recipe.eval_batch % (count * steps) == 0
        is_alone = recipe.method in {"kto", "ppo", "grpo"} and batch // steps <= 1
        used = batch if divides and not is_alone else None
    else:
        used = batch if "default" in recipe.id else steps * count * (batch // (steps * count))
    if used is None:
        return "error", None
    return ("exact" if used == batch else "other batch"), used


def test_the_dpo_repository_as_documented(shipped):
    """B=64 A=2 and B=32 A=2, at the counts of the document."""
    sft, dpo = read(shipped["dpo-1-sft-pythia69-hh"]).foreign, read(shipped["dpo-3-dpo-pythia69-hh"]).foreign
    assert [sft.outcome(count).batch for count in (3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15)] == [
        60, 60, 60, 56, 54, 60, 44, 48, 52, 56, 60,
    ]  # fmt: skip
    assert [dpo.outcome(count).batch for count in (3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15)] == [
        30, 30, 24, 28, 18, 20, 22, 24, 26, 28, 30,
    ]  # fmt: skip
    assert sft.outcome(6).dropped == ((30, 32), (62, 64))
    assert [sft.outcome(count).eval_text for count in (6, 11, 12)] == ["30 of 32", "22 of 32", "24 of 32"]


def test_the_ppo_scripts_start_nowhere(shipped):
    """They start at none of 1 to 16 GPUs. With the old meaning of batch_size they have batches of 64."""
    recipe = shipped["halos-launch_llama_ppo_online"]
    found = read(recipe)
    assert {found.foreign.outcome(count).verdict for count in COUNTS} == {"error"}
    old = read_recipe(recipe.path, recipe.arguments, RecipeOptions(halos_batch="per-accumulation"))
    assert old.global_batch == 64
    assert [count for count in COUNTS if old.foreign.outcome(count).verdict == "exact"] == [1, 2, 4, 8]


def test_halos_at_its_own_counts(shipped):
    """B=32 A=1 starts at 1, 2, 4, 8 and 16. Any other count is a ValueError."""
    found = read(shipped["halos-launch_llama_instruct_dpo"])
    assert [count for count in COUNTS if found.foreign.outcome(count).verdict == "exact"] == [1, 2, 4, 8, 16]
    assert found.foreign.outcome(3).text == "ValueError: 32 % (3 x 1) = 2"


def test_the_handbook_is_16_a_gpu(shipped):
    """Batches of 128 at 8 GPUs are silently 16 * W at W."""
    found = read(shipped["hb-zephyr-7b-beta-dpo-config_full"])
    assert [found.foreign.outcome(count).batch for count in COUNTS] == [16 * count for count in COUNTS]


@pytest.mark.parametrize(("examples", "steps"), [("10_000", {1: 313, 2: 312, 4: 312}), ("20_000", {1: 625, 2: 625})])
def test_n_examples_ends_a_halos_run_a_step_earlier_or_later(tmp_path, examples, steps):
    """HALOs counts after each micro-batch, and an incomplete group of micro-batches makes no step."""
    row = next(row for row in rows() if row["id"] == "halos-launch_llama_instruct_dpo")
    found = read(write({**row, "duration": f"n_examples={examples}"}, tmp_path))
    number, batch = int(examples), 32
    for accumulation, wanted in steps.items():
        seen = micro_batches = 0
        while seen < number:
            seen += batch // accumulation
            micro_batches += 1
        assert found.foreign.steps(accumulation) == micro_batches // accumulation == wanted
