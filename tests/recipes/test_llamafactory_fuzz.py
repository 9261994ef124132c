"""Random LLaMA-Factory recipes: planner says what its own rules (`llamafactory_judge`) say, or refuses the recipe."""

import json
import os
from pathlib import Path

import llamafactory_judge as judge
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamafactory_rows import SIZES

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe

BASE = {"model_name_or_path": "m", "stage": "sft", "do_train": True, "finetuning_type": "lora", "dataset": "identity"}
DEEPSPEED = {
    "auto.json": {"gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2}},
    "z3.json": {"gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 3}},
    "fixed.json": {"train_batch_size": 32, "gradient_accumulation_steps": "auto"},
    "shared.json": {"gradient_accumulation_steps": "auto", "tensor_parallel": {"autotp_size": 2}},
}
VALUES = {
    "per_device_train_batch_size": [1, 2, 3, 8, 16, "8", 2.0, 0, None, True],
    "gradient_accumulation_steps": [1, 2, 5, "2", 0, None],
    "stage": ["pt", "dpo", "kto", "rm", "ppo", "orpo", None],
    "finetuning_type": ["full", "freeze", "oft", "qlora", None],
    "accelerator_config": [
        {"split_batches": True},
        {"gradient_accumulation_kwargs": {"num_steps": 4}},
        {"even_batches": False},
        None,
    ],
    "deepspeed": [*DEEPSPEED, None],
    "packing": [True, False, None],
    "neat_packing": [True],
    "val_size": [0.1, 100, 0],
    "eval_strategy": ["steps", "no", False],
    "eval_dataset": ["identity"],
    "streaming": [True],
    "max_steps": [10],
    "max_samples": [100],
    "mask_history": [True],
    "train_on_prompt": [True],
    "use_badam": [True, False],
    "use_galore": [True],
    "use_apollo": [True, {"a": 1}],
    "galore_layerwise": [True],
    "use_dora": [True],
    "loraplus_lr_ratio": [16.0],
    "adapter_name_or_path": ["a", []],
    "quantization_bit": [4],
    "auto_find_batch_size": [True],
    "use_hyper_parallel": [True],
    "reward_model": ["r"],
    "ray_num_workers": [2, 20],
    "use_kt": [True],
    "pref_loss": ["orpo", "hinge"],
    "dpo_beta": [0.1],
    "mix_strategy": ["interleave_under", ["x"]],
    "not_a_key": [1],
}
OVERRIDES = ["gradient_accumulation_steps=3", "stage=dpo", "--stage=dpo", "++stage=dpo", "deepspeed=null"]
LAUNCHERS = {
    "llamafactory-cli": "llamafactory-cli train",
    "torchrun": "torchrun src/train.py",
    "deepspeed": "deepspeed src/train.py",
    "python": "python src/train.py",
}
VARIABLES = ["FORCE_TORCHRUN", "USE_RAY", "USE_KT", "ALLOW_EXTRA_ARGS"]


@st.composite
def recipes(draw):
    """(keys, overrides, launcher, variables)."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
    keys = {**BASE, **{name: draw(st.sampled_from(VALUES[name])) for name in names}}
    overrides = draw(st.lists(st.sampled_from(OVERRIDES), max_size=1))
    variables = draw(st.lists(st.sampled_from(VARIABLES), max_size=1))
    return keys, overrides, draw(st.sampled_from(sorted(LAUNCHERS))), dict.fromkeys(variables, "1")


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    """The folder of the recipes, in which DeepSpeed's files are."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("recipes")
    for name, its in DEEPSPEED.items():
        (folder / name).write_text(json.dumps(its))
    os.chdir(folder)
    yield
    os.chdir(before)


def judged(keys, overrides, launcher, variables):
    """GPUs -> the batch, None where LLaMA-Factory refuses it or fixes none."""
    Path("recipe.yaml").write_text(json.dumps(keys))
    config, found = judge.load("recipe.yaml", overrides), {}
    for gpus in SIZES:
        try:
            batch = judge.batch_at(config, gpus, launcher=launcher, environment=variables, root=Path.cwd())
            found[gpus] = batch.samples
        except (judge.Refused, judge.Unfixed):
            found[gpus] = None
    return found


def recipe_of(keys, overrides, launcher, variables, *, is_for_job):
    """What planner reads. None if it refuses the recipe, or says that only older versions take it."""
    Path("recipe.yaml").write_text(json.dumps(keys))
    words = [*(f"{name}={its}" for name, its in variables.items()), LAUNCHERS[launcher], "recipe.yaml", *overrides]
    gpus = None if "USE_RAY" in variables else 4
    options = RecipeOptions(gpus=gpus, is_for_job=is_for_job, needs_micro=is_for_job)
    try:
        recipe = read_recipe(" ".join(words), (), options)
    except RecipeError:
        return None
    traps = recipe.traps(CheckOptions(counts=list(SIZES)))
    return None if any(trap.name == "does not load" for trap in traps) else recipe


@given(recipes())
@settings(max_examples=120, deadline=None)
def test_a_verdict_is_that_of_llamafactory(case):
    """A count for which planner names a batch trains that batch."""
    if recipe := recipe_of(*case, is_for_job=False):
        theirs = judged(*case)
        ours = {gpus: recipe.foreign.outcome(gpus).batch for gpus in SIZES}
        assert {gpus: its for gpus, its in ours.items() if its is not None and its != theirs[gpus]} == {}


@given(recipes())
@settings(max_examples=60, deadline=None)
def test_a_draft_is_a_job_or_a_refusal(case):
    if recipe := recipe_of(*case, is_for_job=True):
        job, _ = job_of(recipe)
        assert job.batch.global_batch == recipe.global_batch


def test_the_fuzz_meets_verdicts():
    """Plain recipes are not refused, so the properties above are about something."""
    for launcher in LAUNCHERS:
        assert recipe_of(BASE, [], launcher, {}, is_for_job=False).global_batch == 32
        assert judged(BASE, [], launcher, {})[1] == 8
