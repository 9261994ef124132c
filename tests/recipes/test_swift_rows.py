"""planner's verdict on ms-swift's shipped examples and changes to them, against what its own code computes."""

import contextlib
import random

import pytest
import swift_cases
from swift_rows import SIZES, rows

from planner.errors import PlannerError, RecipeError
from planner.recipes import RecipeOptions, job_of, read_recipe

STRICTER = ("deepspeed_autotp_size", "generation_batch_size")
"""planner refuses a recipe that has them, with what to write, although ms-swift starts at some counts"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(command, tmp_path, **options):
    path = tmp_path / "train.sh"
    path.write_text(command)
    return read_recipe(str(path), (), RecipeOptions(**options))


def verdicts(command, tmp_path):
    """What planner says of each count: a batch, or `-` where ms-swift does not start or no batch is fixed."""
    try:
        foreign = read(command, tmp_path, is_for_job=False, needs_micro=False).foreign
    except RecipeError as error:
        assert "train.sh: " in str(error)  # noqa: PT017
        return dict.fromkeys(SIZES, "-")
    outcomes = {count: foreign.outcome(count) for count in SIZES}
    return {count: "-" if each.verdict == "error" else str(each.batch) for count, each in outcomes.items()}


def expected_of(row):
    if "?" in row.expected.values() or (row.options.keys() & set(STRICTER) and row.options.get("rlhf_type") != "grpo"):
        return dict.fromkeys(SIZES, "-")
    return row.expected


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_count_trains_the_batch_that_ms_swift_computes(row, tmp_path):
    command = swift_cases.command_of(row.verb, row.options, row.launch)
    assert verdicts(command, tmp_path) == expected_of(row)


@pytest.mark.parametrize("row", [row for row in rows() if row.file], ids=lambda row: row.name)
def test_each_shipped_example_is_tuned_for_the_batch_of_its_own_launch(row, tmp_path):
    recipe = read(swift_cases.command_of(row.verb, row.options, row.launch), tmp_path, is_for_job=False)

    assert str(recipe.gpus) == row.columns["W"]
    assert str(recipe.global_batch) == row.expected[recipe.gpus]


def test_random_recipes_have_no_other_batch_than_the_judge(tmp_path):
    rng = random.Random(0)
    known = 0
    for _ in range(60):
        case = swift_cases.case(rng)
        found = verdicts(case.command, tmp_path)
        wrong = {count: its for count, its in found.items() if its != "-" and its != case.judged(count)}
        assert not wrong, case.options
        known += "-" not in found.values()
        with contextlib.suppress(PlannerError):  # and nothing else
            job_of(read(case.command, tmp_path, gpus=None))
    assert known > 5
