"""Every mixture that the alignment-handbook ships becomes the data of a job, with nothing left for the user to save.

`mixtures.csv` lists the data sets of its recipes. Each recipe is written as the handbook writes it.
"""

import pytest
import recipes

from planner.recipes import RecipeOptions, job_of, read_recipe

MIXTURES = recipes.mixtures()
_HEAD = (
    "model_name_or_path: m\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 2\nlearning_rate: 1.0e-6\n"
    "max_length: 1024\nnum_train_epochs: 1\n"
)


def converted(folder, name, more=""):
    """(recipe, job, job's text) of a recipe of the handbook with its data."""
    method = next(word for word in ("sft", "dpo", "orpo") if word in name.split("-"))
    evaluates = "eval_strategy: steps\neval_steps: 100\n" if MIXTURES[name][0]["test_split"] else ""
    file = folder / f"{name}.yaml"
    file.write_text(_HEAD + evaluates + more + recipes.data_lines(MIXTURES[name]))
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=8, method=method))
    return recipe, *job_of(recipe)


def parts_of(row):
    """The keys of a set of the job that a line of the table stands for. A weight of 1 means all rows."""
    weight = float(row["weight"] or 1)
    return {
        "path": row["dataset"],
        "config": row["config"] or None,
        "split": row["split"],
        "columns": {name: name for name in row["columns"].split("|")} if row["columns"] else None,
        "fraction": None if weight == 1 else weight,
    }


def evaluated(row):
    """(eval.samples, the split of eval.data) that the recipe's test split stands for."""
    size = row["test_split"]
    if not row["weight"]:
        return 0, size or None
    return (f"{float(size):.0%}" if size.startswith("0.") else int(size or 0)), None


def test_the_table_has_every_recipe_and_all_sets_of_smollm3():
    assert len(MIXTURES) == 21
    assert len(MIXTURES["smollm3-sft-sft"]) == 25


@pytest.mark.parametrize("name", [name for name in MIXTURES if "orpo" not in name])
def test_a_shipped_mixture_is_the_data_of_the_job(tmp_path, name):
    sets = MIXTURES[name]
    recipe, job, text = converted(tmp_path, name)
    found = [each.model_dump() for each in job.data.sets]
    assert [{key: each[key] for key in parts_of(sets[0])} for each in found] == list(map(parts_of, sets))
    assert all((each["weight"], each["rows"], each["revision"]) == (None, None, None) for each in found)
    assert job.data.seed == int(sets[0]["seed"] or 0)
    rows = job.eval.data
    assert (job.eval.samples, rows and rows.split) == evaluated(sets[0])
    assert rows is None or (rows.path, rows.config) == (job.data.path, job.data.config)
    assert job.eval.every == "100 steps"
    assert not [each for each in recipe.draft.to_do if each.commands or "rows" in each.text]
    assert not [note for note in recipe.draft.dropped if note.key.startswith("dataset")]
    assert text.count("{path: ") == (len(sets) if job.data.mixture else 0)


def test_a_loop_of_your_own_is_told_its_data(tmp_path):
    """The ORPO recipe, whose loss planner's objective does not compute."""
    recipe, job, _ = converted(tmp_path, "zephyr-141b-A35b-orpo-config_full")
    assert job.is_own
    told = "data {kind: pairs, path: argilla/distilabel-capybara-dpo-7k-binarized, split: train}"
    assert any(told in each.text for each in recipe.draft.to_do)


def test_a_loop_of_your_own_is_told_every_set_of_a_mixture(tmp_path):
    """Also where there are many. Its evaluation on a split of its own is told, too."""
    _, job, text = converted(tmp_path, "smollm3-sft-sft", "loss_type: dft\n")
    assert job.is_own
    assert all(f"split: {row['split']}, " in text for row in MIXTURES["smollm3-sft-sft"])
    _, job, text = converted(tmp_path, "smollm2-sft-config", "loss_type: dft\n")
    assert (job.eval.data, job.eval.is_on) == (None, False)
    told = "eval {data: {path: HuggingFaceTB/smoltalk, config: all, split: test}, samples: 0, every: 100 steps}"
    assert told in text


def test_rows_are_held_out_as_the_script_does_even_without_an_evaluation(tmp_path):
    """test_split_size takes them out of the rows to train on, whatever eval_strategy says."""
    file = tmp_path / "quiet.yaml"
    file.write_text(_HEAD + recipes.data_lines(MIXTURES["smollm-sft-config"]))
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=8, method="sft"))
    job = job_of(recipe)[0]
    assert (job.eval.samples, job.eval.every) == ("5%", "1 epoch")
    assert any("takes those rows out of training" in note.text for note in recipe.draft.derived)
    file.write_text(_HEAD + recipes.data_lines(MIXTURES["smollm2-sft-config"]))
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=8, method="sft"))
    assert not job_of(recipe)[0].eval.is_on
    assert {note.key: note.text for note in recipe.draft.dropped}["dataset_test_split"] == (
        "the recipe does not evaluate it (eval_strategy)"
    )


@pytest.mark.parametrize(("size", "samples"), [("0.05", "5%"), ("0.125", "12.5%"), ("0.001", "0.1%"), ("3000", 3000)])
def test_a_test_split_size_is_a_count_or_a_part(tmp_path, size, samples):
    file = tmp_path / "recipe.yaml"
    file.write_text(f"{_HEAD}datasets: [{{path: org/a}}]\ntest_split_size: {size}\neval_strategy: epoch\n")
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=8, method="sft"))
    assert (job_of(recipe)[0].eval.samples, job_of(recipe)[0].eval.every) == (samples, "1 epoch")


@pytest.mark.parametrize("lines", ["dataset_name: rows.jsonl", "dataset_mixture: {datasets: [{id: org/a}]}"])
def test_an_evaluation_without_rows_of_its_own_is_asked_for(tmp_path, monkeypatch, lines):
    """A file has one split, and a mixture has a test split only with test_split_size."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    (tmp_path / "recipe.yaml").write_text(f"{_HEAD}{lines}\neval_strategy: steps\n")
    recipe = read_recipe("recipe.yaml", (), RecipeOptions(gpus=8, method="sft"))
    assert not job_of(recipe)[0].eval.is_on
    assert [each for each in recipe.draft.to_do if each.text.startswith("eval.samples: write how many training rows")]


def test_the_older_handbook_evaluates_test_splits_whole(tmp_path):
    file = tmp_path / "recipe.yaml"
    mixer = "dataset_mixer: {org/a: 0.5, org/b: 1.0}\ndataset_splits: [train_sft, test_sft]\n"
    file.write_text(f"{_HEAD}{mixer}eval_strategy: epoch\n")
    job = job_of(read_recipe(str(file), (), RecipeOptions(gpus=8, method="sft")))[0]
    assert [(each.name, each.fraction) for each in job.data.sets] == [
        ("org/a train_sft", 0.5),
        ("org/b train_sft", None),
    ]
    assert [(each.name, each.fraction) for each in job.eval.data.sets] == [
        ("org/a test_sft", None),
        ("org/b test_sft", None),
    ]
