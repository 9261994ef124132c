"""Data sets that the DPO repository and HALOs name: into a job with their loaders, and back."""

import pytest

from planner.files import parse_job
from planner.recipes import RecipeOptions, job_of, read_recipe
from planner.recipes.hydra_recipes.datasets import names_in
from planner.recipes.rewrite import rewrite

DPO = "python -u train.py model=pythia69 datasets=[{names}] loss=dpo loss.beta=0.1 batch_size=64 trainer=FSDPTrainer"
HALOS = (
    "accelerate launch --num_processes 4 launch.py loss={loss} model=llama train_datasets=[{names}] "
    "test_datasets=[{names}] exp_name=a ++model.name_or_path=org/x ++model.batch_size=32 ++lr=1e-6 "
    "++model.gradient_accumulation_steps=1 ++n_eval_examples=100 ++eval_every=640"
)


def converted(command):
    recipe = read_recipe(command, (), RecipeOptions(gpus=4, halos_batch="total"))
    return recipe, job_of(recipe)[0]


@pytest.mark.parametrize(
    ("command", "system", "names"),
    [
        (DPO, "dpo", ("hh",)),
        (DPO, "dpo", ("hh", "shp", "se")),
        (HALOS.replace("{loss}", "kto"), "halos", ("shp", "ultrabin")),
        (HALOS.replace("{loss}", "sft"), "halos", ("oasst",)),
    ],
)
def test_names_become_loaders_and_names_again(command, system, names):
    """The training split, the test split, and how much of it is evaluated how often."""
    command = command.replace("{names}", ",".join(names))
    recipe, job = converted(command)
    assert [(each.loader, each.split) for each in job.data.sets] == [(f"{system}/{name}", "train") for name in names]
    assert [each.loader for each in job.eval.data.sets] == [each.loader for each in job.data.sets]
    assert {each.split for each in job.eval.data.sets} == {"test"}
    assert not [each for each in recipe.draft.to_do if "as jsonl" in each.text]
    typed = rewrite(recipe, system, 4).command
    assert f"datasets=[{','.join(names)}]" in typed
    _, again = converted(typed.replace("model.block_name=BLOCK", "model.block_name=GPTNeoXLayer"))
    assert again.data.sets == job.data.sets
    assert again.eval == job.eval


def test_parts_of_tulu_are_splits_of_one_set():
    """They have no test split of their own, so rows are held out as the user says."""
    recipe, job = converted(HALOS.format(loss="dpo", names="tulu_v25_hh"))
    (only,) = job.data.sets
    assert (only.loader, only.split) == ("halos/tulu_v25", "hh_rlhf")
    assert "train_datasets=[tulu_v25_hh]" in rewrite(recipe, "halos", 4).command


@pytest.mark.parametrize(
    "changed",
    [
        "path: data/hh",
        "split: test",
        "fraction: 0.5",
        "revision: main",
        "columns: [chosen, rejected]",
        "loader: dpo/shp",
    ],
)
def test_rows_that_a_name_does_not_mean_have_none(changed):
    """A copy, a part, other columns, or the rules of another loader."""
    rows = {"path": "Anthropic/hh-rlhf", "split": "train", "loader": "dpo/hh"}
    key, _, value = changed.partition(": ")
    text = (
        "name: a\nmodel: {kind: gpt, layers: 1, width: 2, heads: 1, context: 9}\nobjective: dpo\n"
        "batch: {global: 4, max_micro: 4}\ntrain: {epochs: 1, optimizer: {kind: adamw, lr: 1}}\n"
    )

    def data(its):
        return parse_job(
            f"{text}data: {{kind: pairs, mixture: [{{{', '.join(f'{k}: {v}' for k, v in its.items())}}}]}}\n"
        ).data

    assert names_in("dpo", data(rows), "train") == ["hh"]
    assert names_in("dpo", data({**rows, key: value}), "train") == []
    assert names_in("halos", data(rows), "train") == []
    assert names_in("dpo", None, "train") == []
