"""Of the recipes that the three systems ship, `convert` drops nothing that touches training.

Methods that planner has no objective for become a loop of the user's own, and their data and values are told.
"""

import pytest
import recipes

from planner.recipes import RecipeOptions, job_of, read_recipe

# Keys that change how fast a recipe runs, what it shows or where results go.
HARMLESS = {
    *("eval_batch_size", "model.eval_batch_size", "per_device_eval_batch_size"),  # rows that a GPU evaluates at once
    *("trainer", "exp_name"),
}
# HALOs: rounds of sampling between runs, a test set of its own, and arguments in a variable that is not set.
STILL_TO_COME = {"online", "test_datasets", "$MODEL_LOAD_ARG"}
HANDBOOK = [row for row in recipes.rows() if row["system"] == "alignment-handbook"]
OTHERS = [row for row in recipes.rows() if row["system"] != "alignment-handbook"]
# The first words of what is left to do for a recipe of the handbook.
LEFT = ("data.max_prompt: the recipe has no max_prompt_length", "pairs longer than model.context: TRL keeps")
LEFT_WITH_A_LOOP = ("planner's orpo leaves the prompt out", "what the loop must do itself", "the loss: settings that")


def converted(row, folder):
    """(recipe, job) of a row of the table."""
    shipped = recipes.write(row, folder)
    halos_batch = "total" if shipped.system == "HALOs" else None
    recipe = read_recipe(shipped.path, shipped.arguments, RecipeOptions(gpus=shipped.gpus, halos_batch=halos_batch))
    return recipe, job_of(recipe)[0]


def test_the_table_has_the_recipes_of_three_systems():
    assert (len(HANDBOOK), len(OTHERS)) == (13, 14)


@pytest.mark.parametrize("row", HANDBOOK, ids=lambda row: row["id"])
def test_a_recipe_of_the_handbook_loses_nothing_that_touches_training(tmp_path, row):
    recipe, job = converted(row, tmp_path)
    assert {note.key for note in recipe.draft.dropped} <= HARMLESS
    left = [each.text for each in recipe.draft.to_do]
    assert [text for text in left if not text.startswith(LEFT + (LEFT_WITH_A_LOOP if job.is_own else ()))] == []
    assert job.is_own == (row["method"] == "orpo")
    assert job.batch.global_batch == int(row["global_batch"])
    if not job.is_own:
        assert job.eval.is_on == row["eval_batch_value"][:1].isdigit()
        assert (job.train.epochs, job.model.path) == (float(row["duration"].split()[0]), row["model"])
        assert job.train.optimizer.lr == float(row["lr"] or (2e-5 if row["method"] == "sft" else 1e-6))


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row["id"])
def test_a_recipe_of_another_system_loses_only_what_is_still_to_come(tmp_path, row):
    recipe, job = converted(row, tmp_path)
    assert {note.key for note in recipe.draft.dropped} <= HARMLESS | STILL_TO_COME
    assert job.batch.global_batch == int(row["global_batch"])
    assert job.is_own == (row["method"] in {"ppo", "grpo"} or "humanline" in row["id"])
