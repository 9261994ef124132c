"""The section `eval`: numbers, parts, and a data set of its own."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.job import Job
from planner.job.settings import Eval


def make_job(data, objective, evaluation=()):
    return Job.model_validate(
        {
            "name": "test",
            "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8},
            "data": data,
            "objective": objective,
            "batch": {"global": 3, "max_micro": 2},
            "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": dict(evaluation),
        }
    )


CHAT = {"kind": "chat", "path": "rows.jsonl", "loss_on": "all", "split": "train", "packing": True}


@given(hundredths=st.integers(1, 10_000), num_rows=st.integers(0, 10**9))
def test_a_part_is_rounded_up_exactly(hundredths, num_rows):
    """Binary floats would say that 7% of 100 rows are 8."""
    part = Eval(samples=f"{hundredths // 100}.{hundredths % 100:02}%")
    assert part.num_samples(num_rows) == math.ceil(Fraction(hundredths, 10_000) * num_rows)
    assert Eval(samples="7%").num_samples(100) == 7
    assert Eval(samples="5%").num_samples(201) == 11  # as test_split_size of the handbook


def test_equal_parts_have_one_text():
    """So equal jobs have equal digests."""
    assert Eval(samples="5.0%") == Eval(samples="5%")
    assert Eval(samples=".50%").samples == "0.5%"


@pytest.mark.parametrize("samples", [-1, 2**20 + 1, "0%", "101%", "5", "5 %x", "", 0.5, True, None])
def test_other_values_are_refused(samples):
    """No negative number, no part of nothing, no bare text."""
    with pytest.raises(ValidationError):
        Eval(samples=samples)


def test_zero_means_none_without_data_and_all_with_it():
    """`is_on` says whether a job evaluates at all."""
    assert not Eval().is_on
    assert Eval().num_samples(30) == 0
    apart = Eval(data={"path": "test.jsonl"})
    assert apart.is_on
    assert apart.num_samples(30) == 30
    assert Eval(samples=4, data={"path": "test.jsonl"}).num_samples(30) == 4


def test_rows_for_evaluation_are_opened_like_those_to_train_on():
    """Only where the rows are is another: kind, cut, marks and packing are those of `data`."""
    job = make_job(CHAT, "sft", {"data": {"mixture": ["a.jsonl", {"path": "b.jsonl", "rows": 3}], "seed": 4}})
    assert job.eval_data.mixture == job.eval.data.mixture
    assert (job.eval_data.path, job.eval_data.split, job.eval_data.seed) == ("", None, 4)
    assert (job.eval_data.kind, job.eval_data.loss_on, job.eval_data.packing) == ("chat", "all", True)
    assert make_job(CHAT, "sft").eval_data is None


@pytest.mark.parametrize("kind", ["text", "jsonl", "tokens"])
def test_kinds_without_rows_have_no_data_for_evaluation(kind):
    """The error says what works instead."""
    with pytest.raises(ValidationError, match=f"data.kind is {kind}. Write eval.samples alone"):
        make_job({"kind": kind, "path": "a"}, "lm", {"data": {"path": "b"}})
