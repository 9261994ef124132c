import csv
import json
from pathlib import Path

import axolotl_judge
import pytest
import yaml
from axolotl_judge import Batch, Refused, Unknown

HERE = Path(__file__).parent / "axolotl"
WORLDS = range(1, 17)
ROWS = 1000
"""of the data, as in execute.py"""
with (HERE / "sizes.csv").open(encoding="utf-8") as file:
    SIZES = list(csv.DictReader(file))


def _name(row):
    return row["file"] + row["overrides"]


@pytest.fixture(scope="module")
def configs():
    names = {row["file"] for row in SIZES}
    read = {name: yaml.safe_load((HERE / name).read_text(encoding="utf-8")) for name in names}
    return {_name(row): read[row["file"]] | json.loads(row["overrides"] or "{}") for row in SIZES}


def _judged(config, world):
    try:
        return axolotl_judge.batch_at(config, world)
    except Refused:
        return "-"
    except Unknown:
        return "?"


def _words(answers, field):
    return " ".join(answer if isinstance(answer, str) else str(getattr(answer, field)) for answer in answers)


@pytest.mark.parametrize("row", SIZES, ids=_name)
def test_the_judge_and_axolotl_agree_on_each_row_at_1_to_16_processes(row, configs):
    answers = [_judged(configs[_name(row)], world) for world in WORLDS]

    assert _words(answers, "rows") == row["rows"]
    assert _words(answers, "counted") == row["counted"]


@pytest.mark.parametrize("row", [row for row in SIZES if row["m"]], ids=_name)
def test_the_judge_and_axolotl_agree_on_the_parts_of_the_batch(row, configs):
    first = next(answer for world in WORLDS if isinstance(answer := _judged(configs[_name(row)], world), Batch))

    assert (str(first.micro), str(first.accumulation)) == (row["m"], row["A"])


@pytest.mark.parametrize("row", [row for row in SIZES if row["steps"]], ids=_name)
def test_the_judge_and_axolotl_agree_on_the_number_of_steps(row, configs):
    config = configs[_name(row)]
    world = next(world for world in WORLDS if world > 1 and isinstance(_judged(config, world), Batch))

    assert str(axolotl_judge.steps_at(config, ROWS, world)) == row["steps"]


def test_the_columns_of_a_row_say_what_its_file_says(configs):
    for row in SIZES:
        config = configs[_name(row)]
        for key in ("micro_batch_size", "gradient_accumulation_steps", "batch_size", "sequence_len"):
            assert row[key] == ("" if config.get(key) is None else str(config[key])), (_name(row), key)
        assert row["sample_packing"] == str(bool(config.get("sample_packing")))
        assert row["adapter"] == (config.get("adapter") or "full")


def test_the_rows_cover_the_shipped_examples_that_are_here():
    shipped = {str(path.relative_to(HERE)) for path in HERE.rglob("*.y*ml")}

    assert {row["file"] for row in SIZES} == shipped
    assert len([row for row in SIZES if not row["overrides"]]) >= 60


def test_batch_size_alone_leaves_the_accumulation_at_one_and_shortens_the_run(configs):
    config = configs["examples/archived/cerebras/qlora.yml"] | {"micro_batch_size": 1}
    batch = axolotl_judge.batch_at(config, 2)

    assert (batch.rows, batch.counted) == (2, 8)
    assert axolotl_judge.steps_at(config, ROWS, 2) * batch.rows == ROWS * config["num_epochs"] / 4


def test_no_process_count_but_the_product_of_the_named_axes_starts(configs):
    config = configs["examples/distributed-parallel/llama-3_1-8b-hsdp-tp.yaml"]
    started = [world for world in range(1, 65) if isinstance(_judged(config, world), Batch)]

    assert started == [16]
    assert axolotl_judge.batch_at(config, 16).rows == 8
