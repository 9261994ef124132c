"""The rows of LLaMA-Factory's shipped examples, and the judge that was written from its source, agree."""

from collections import Counter

import llamafactory_judge as judge
import llamafactory_rows as table
import pytest

BASE = {"model_name_or_path": "model", "do_train": True, "dataset": "identity", "output_dir": "out"}


def answer(config, gpus, **given):
    try:
        return str(judge.batch_at(config, gpus, **given).samples)
    except judge.Refused:
        return "-"
    except judge.Unfixed:
        return "?"


def test_there_are_rows_of_every_trainer_and_method():
    counts = Counter((row.columns["trainer"], row.columns["method"]) for row in table.rows())
    assert sum(counts.values()) == 62
    assert counts["v1", "sft"] == 12
    assert counts["mca", "sft"] == 2
    assert {method for _, method in counts} == {"sft", "pt", "dpo", "kto", "rm", "predict"}


def test_every_shipped_recipe_that_trains_has_a_row():
    files = {
        str(path.relative_to(judge.FOLDER))
        for path in judge.FOLDER.glob("examples/**/*.yaml")
        if path.parent.name != "accelerate"
    }
    assert files == {row.file for row in table.rows()}


@pytest.mark.parametrize("row", table.rows(), ids=lambda row: row.file)
def test_the_judge_and_the_rows_agree_on_1_to_16_gpus(row):
    told = {gpus: answer(row.config, gpus, launcher=row.launcher, environment=row.environment) for gpus in table.SIZES}
    assert told == row.expected


@pytest.mark.parametrize("row", table.rows(), ids=lambda row: row.file)
def test_a_row_says_the_micro_batch_and_the_accumulation_of_its_file(row):
    keys = {"v1": ("micro_batch_size", 1)}.get(row.columns["trainer"], ("per_device_train_batch_size", 8))
    assert int(row.columns["m"]) == row.config.get(*keys)
    if row.columns["A"] != "4 / replicas":
        assert int(row.columns["A"]) == row.config.get("gradient_accumulation_steps", 1)


@pytest.mark.parametrize(
    ("changes", "gpus", "expected"),
    [
        ({}, 4, "32"),  # 8 rows and no accumulation by default
        ({"stage": "pt"}, 2, "16"),
        ({"accelerator_config": {"split_batches": True}, "gradient_accumulation_steps": 3}, 4, "24"),
        ({"accelerator_config": {"split_batches": True}}, 3, "-"),
        ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}}}, 2, "64"),
        ({"auto_find_batch_size": True}, 2, "?"),
        ({"deepspeed": "examples/deepspeed/ds_z3_config.json"}, 1, "-"),
        ({"deepspeed": "examples/deepspeed/ds_z2_autotp_config.json"}, 2, "?"),
        ({"stage": "dpo", "neat_packing": True}, 2, "-"),
        ({"tensor_model_parallel_size": 2}, 2, "-"),
        ({"streaming": True}, 2, "-"),
        ({"streaming": True, "max_steps": 10}, 2, "16"),
        ({"do_train": False}, 2, "-"),
        ({"per_device_train_batch_size": "8"}, 2, "-"),  # nothing converts a text
        ({"gradient_accumulation_steps": 0}, 2, "-"),
        ({"stage": "orpo"}, 2, "-"),
        ({"finetuning_type": "qlora"}, 2, "-"),
    ],
)
def test_settings_that_no_shipped_example_has(changes, gpus, expected):
    assert answer({**BASE, **changes}, gpus) == expected


@pytest.mark.parametrize(
    ("gpus", "given", "expected"),
    [
        (2, {"launcher": "python"}, "-"),
        (1, {"launcher": "python"}, "8"),
        (2, {"launcher": "torchrun"}, "16"),
        (3, {"environment": {"FORCE_TORCHRUN": "1"}}, "24"),
        (8, {"environment": {"USE_RAY": "1"}}, "8"),  # one worker unless ray_num_workers says more
    ],
)
def test_how_it_is_launched_decides_how_many_processes_train(gpus, given, expected):
    assert answer(BASE, gpus, **given) == expected


def test_a_number_in_deepspeeds_file_must_be_the_recipes(tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4}')
    given = {"launcher": "torchrun", "root": tmp_path}
    assert answer({**BASE, "deepspeed": "ds.json"}, 2, **given) == "-"
    assert answer({**BASE, "deepspeed": "ds.json", "per_device_train_batch_size": 4}, 2, **given) == "8"


@pytest.mark.parametrize(
    ("settings", "unit"),
    [
        ({}, "rows"),
        ({"packing": True}, "packed rows"),
        ({"neat_packing": True}, "packed rows"),
        ({"stage": "pt"}, "blocks"),
        ({"stage": "pt", "packing": False}, "rows"),
        ({"stage": "dpo", "packing": True}, "pairs"),
        ({"stage": "kto"}, "rows"),
    ],
)
def test_what_a_sample_is(settings, unit):
    assert judge.batch_at({**BASE, **settings}, 1).unit == unit


def test_overrides_are_read_as_omegaconf_reads_them(tmp_path):
    (tmp_path / "recipe.yaml").write_text("learning_rate: 1e-5\nstage: sft\n")
    config = judge.load(tmp_path / "recipe.yaml", ["stage=dpo", "per_device_train_batch_size=2"])
    assert config == {"learning_rate": 1e-5, "stage": "dpo", "per_device_train_batch_size": 2}
