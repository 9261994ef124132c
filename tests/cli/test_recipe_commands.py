"""`planner convert` and `planner check`: what a user reads, what a script parses, and what is refused."""

import json

import pytest
import recipes

TRL = """
model_name_or_path: org/model
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
learning_rate: 5e-7
max_length: 1024
num_train_epochs: 1
"""


@pytest.fixture
def shipped(tmp_path):
    """The recipes of the table, by name."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    return {each.id: each for each in recipes.write_all(folder)}


def test_the_page_shows_both_sides(shipped, cli):
    """The table, the sums under it, units and traps."""
    recipe = shipped["dpo-1-sft-pythia69-hh"]
    answer = cli("check", recipe.path, *recipe.words, *recipe.check_options, "--rows", "1000")
    assert answer.code == 0
    assert "   6  60 of 64 (-6.2%): drops 30-31, 62-63   30 of 32   4 x 11 + 2 x 10" in answer.out
    assert (
        "DPO repository: exact at 5 of 16 counts, silently another batch at 11. planner: exact at 16 of 16."
        in answer.out
    )
    assert "examples, lowered to 19968: every 312 steps" in answer.out
    assert "here 40 of 1000" in answer.out
    assert all(len(line) <= 100 for line in answer.out.splitlines()[2:])


def test_the_json_has_the_same(shipped, cli):
    """The verdict and the very plan of each count."""
    recipe = shipped["hb-zephyr-7b-beta-dpo-config_full"]
    answer = cli("check", recipe.path, *recipe.check_options, "--gpus", "7,8", "--json")
    made = json.loads(answer.out)
    assert (made["global_batch"], made["exact_there"], made["exact_here"]) == (128, [8], [7, 8])
    first = made["counts"][0]
    assert (first["verdict"], first["batch"], first["percent"]) == ("other batch", 112, -12.5)
    assert first["planner"]["shares"] == [[2, 19], [5, 18]]


def test_convert_then_plan(shipped, cli, tmp_path):
    """The two commands after one another, as a user types them."""
    recipe = shipped["halos-launch_llama_sft_kto"]
    answer = cli("convert", recipe.path, *recipe.words, *recipe.options, "-o", "job.yaml")
    assert answer.code == 0, answer.err
    assert "batch.global 32" in answer.out
    plan = cli("plan", "job.yaml", "--gpus", "7", "--json")
    assert json.loads(plan.out)[0]["shares"] == [[4, 5], [3, 4]]
    assert (tmp_path / "job.yaml").is_file()
