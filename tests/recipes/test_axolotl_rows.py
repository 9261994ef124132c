"""planner's verdict on axolotl's shipped examples and changes to them, against what its own code computes."""

import json

import pytest
import yaml
from axolotl_rows import FOLDER, SIZES, rows

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe

TUNED = 4


def verdicts(tree, folder):
    """What planner says of each count: a batch, or `-` where axolotl does not start or no batch is fixed."""
    path = folder / "recipe.json"
    path.write_text(json.dumps(tree))
    foreign = None
    for gpus in (TUNED, None):  # without a count for a recipe that names one
        try:
            options = RecipeOptions(gpus=gpus, is_for_job=False, needs_micro=False)
            foreign = read_recipe(str(path), (), options).foreign
            break
        except RecipeError as error:
            assert "refuses" in str(error) or "found" in str(error) or "says num_processes" in str(error)  # noqa: PT017
    if foreign is None:
        return dict.fromkeys(SIZES, "-")
    outcomes = {count: foreign.outcome(count) for count in SIZES}
    return {count: "-" if each.verdict == "error" else str(each.batch) for count, each in outcomes.items()}


def tree_of(row):
    return {**yaml.safe_load((FOLDER / row.file).read_text()), **row.overrides}


def expected_of(row):
    """The row's batches. planner refuses a recipe that fixes none, and Ray starts its workers at every count."""
    if "?" in row.expected.values():
        return dict.fromkeys(SIZES, "-")
    tree = tree_of(row)
    if not tree.get("use_ray"):
        return row.expected
    workers = tree["ray_num_workers"]
    return {count: row.expected[workers] if count >= workers else "-" for count in SIZES}


def groups_are_whole(row, count):
    """Whether TRL's GRPOConfig starts, which the row's computation did not make for gdpo."""
    tree = tree_of(row)
    return row.columns["method"] != "gdpo" or int(row.expected[count]) % tree["trl"]["num_generations"] == 0


def test_there_are_enough_rows():
    assert len(rows()) >= 40


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_count_trains_the_batch_that_axolotl_computes(row, tmp_path, monkeypatch):
    monkeypatch.chdir(FOLDER)
    expected = {count: batch if groups_are_whole(row, count) else "-" for count, batch in expected_of(row).items()}
    assert verdicts(tree_of(row), tmp_path) == expected
