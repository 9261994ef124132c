import pytest
import swift_judge
from swift_judge import Batch, Refused, Unknown
from swift_rows import SIZES, rows


def _judged(row, processes):
    try:
        return swift_judge.batch_at(row.verb, row.options, processes)
    except Refused:
        return "-"
    except Unknown:
        return "?"


def _rows(answer):
    return str(answer.rows) if isinstance(answer, Batch) else answer


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_judge_and_ms_swift_agree_on_each_row_at_1_to_16_processes(row):
    assert {count: _rows(_judged(row, count)) for count in SIZES} == row.expected


@pytest.mark.parametrize("row", [row for row in rows() if row.file], ids=lambda row: row.name)
def test_each_shipped_example_starts_at_its_own_count_with_its_m_and_a(row):
    batch = _judged(row, int(row.columns["W"]))

    assert (str(batch.micro), str(batch.accumulation)) == (row.columns["m"], row.columns["A"])


def test_there_are_enough_examples_of_each_command():
    examples = [row for row in rows() if row.file]

    assert len(examples) >= 40
    assert len({row.file for row in examples}) == len(examples)
    assert {row.verb for row in examples} == {"sft", "pt", "rlhf"}
    assert {row.options["rlhf_type"] for row in examples if row.verb == "rlhf"} >= {"dpo", "orpo", "rm", "grpo", "gkd"}


def test_a_group_of_sequence_parallelism_shares_rows_but_in_grpo_each_process_has_its_own():
    options = {"model": "m", "dataset": "d", "gradient_accumulation_steps": 2, "sequence_parallel_size": 4}

    assert swift_judge.batch_at("sft", options, 8).rows == 4
    assert swift_judge.batch_at("rlhf", {**options, "rlhf_type": "grpo"}, 8).rows == 16


def test_packing_makes_packs_of_rows_but_not_in_grpo():
    options = {"model": "m", "dataset": "d", "packing": True, "attn_impl": "flash_attn"}

    assert swift_judge.batch_at("sft", options, 1).is_packed
    assert not swift_judge.batch_at("rlhf", {**options, "rlhf_type": "grpo"}, 8).is_packed
