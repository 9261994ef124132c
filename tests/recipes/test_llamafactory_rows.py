"""planner's verdict on LLaMA-Factory's shipped examples, against what its own code computes (`llamafactory_judge`)."""

import pytest
from llamafactory_judge import FOLDER
from llamafactory_rows import SIZES, rows

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, read_recipe

ROWS = [row for row in rows() if row.columns["trainer"] == "v0"]
TUNED = 4
NEWER = "transformers 5 and systems that use it refuse fsdp_transformer_layer_cls_to_wrap"


def verdicts(row):
    """What planner says of each count: a batch, or `-` where LLaMA-Factory does not start."""
    said = "--config_file" in row.columns["command"] or "USE_RAY" in row.columns["command"]
    options = RecipeOptions(gpus=None if said else TUNED, is_for_job=False, needs_micro=False)
    if not row.config.get("do_train"):
        with pytest.raises(RecipeError, match="trains nothing"):
            read_recipe(row.columns["command"], (), options)
        return dict.fromkeys(SIZES, "-")
    foreign = read_recipe(row.columns["command"], (), options).foreign
    if traps := [trap for trap in foreign.traps(CheckOptions(counts=SIZES)) if trap.name == "does not load"]:
        assert NEWER in traps[0].text  # planner reads the recipe as older versions do
        return dict.fromkeys(SIZES, "-")
    outcomes = {count: foreign.outcome(count) for count in SIZES}
    return {count: "-" if each.verdict == "error" else str(each.batch) for count, each in outcomes.items()}


def test_there_are_enough_rows():
    assert len(ROWS) >= 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_each_count_trains_the_batch_that_llamafactory_computes(row, monkeypatch):
    monkeypatch.chdir(FOLDER)
    assert verdicts(row) == row.expected


@pytest.mark.parametrize("row", [row for row in rows() if row not in ROWS], ids=lambda row: row.file)
def test_a_recipe_of_its_other_trainers_is_refused_by_name(row, monkeypatch):
    monkeypatch.chdir(FOLDER)
    with pytest.raises(RecipeError, match=r"Megatron|v1|does not know"):
        read_recipe(row.columns["command"], (), RecipeOptions(gpus=TUNED, is_for_job=False, needs_micro=False))
