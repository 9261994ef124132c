"""Rates files: what is written is read back, and mistakes are one line each."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.files.rates_file import rates_text, read_rates
from planner.plan import BatchSizes, make_plan
from planner.plan.lowered_caps import Caps
from planner.plan.rates import Rates, SizeTimes
from planner.plan.step_time import NOTHING, StepModel, Term, Traffic

RATES = Rates(
    run="/runs/a",
    job="a",
    settings={"model.kind": "gpt", "model.layers": 3, "train.compile": False, "model.lora": None},
    sizes=BatchSizes(global_batch=64, max_micro=8),
    model=StepModel(
        sample_s=Term(value=0.01, source="fitted", because="of the steps at W = 2, 4"),
        fixed_s=Term(value=1e-5, source="fitted"),
        in_node_s_per_byte=Term(value=0.5e-9, source="measured"),
        between_s_per_byte=Term(value=2e-9, source="data sheet"),
        traffic=Traffic(gather_bytes=8e9, reduce_bytes=4e9, reduces_every_round=True),
        node_workers=8,
        sample_tokens=96.5,
    ),
    measured=(
        SizeTimes(world_size=2, steps=40, seconds=0.4, waited_s=0.1, caps=Caps(max_micro=4)),
        SizeTimes(world_size=4, steps=30, seconds=0.2, caps=Caps(max_micro=8)),
    ),
    sample_tokens=Term(value=96.5, source="measured"),
    epoch_samples=1000,
)
HAND = """\
format: 1
batch: {global: 64, max_micro: 8}
terms: {sample_s: {value: 1e-2, source: data sheet}}
"""


def read(tmp_path, text):
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    return read_rates(file)


def test_what_is_written_is_read_back(tmp_path):
    """Every number with its source."""
    assert read(tmp_path, rates_text(RATES)) == RATES


@given(values=st.lists(st.just(0.0) | st.floats(1e-9, 1e6), min_size=6, max_size=6))
def test_every_number_survives(tmp_path_factory, values):
    """Bandwidths are written in GB/s and read as seconds per byte, so they may lose the last bit."""
    sample, each_round, fixed, in_node, between, commits = (Term(value=v, source="assumed") for v in values)
    model = StepModel(
        sample_s=Term(value=sample.value + 1e-9, source="fitted"),
        round_s=each_round,
        fixed_s=fixed,
        in_node_s_per_byte=Term(value=in_node.value * 1e-9, source="fitted"),
        between_s_per_byte=Term(value=(between.value + 1e-3) * 1e-9, source="fitted"),
        commit_s=commits,
    )
    rates = Rates(run="", job="", settings={}, sizes=RATES.sizes, model=model)
    found = read(tmp_path_factory.getbasetemp(), rates_text(rates)).model
    assert (found.sample_s, found.round_s, found.fixed_s, found.commit_s) == (
        model.sample_s,
        each_round,
        fixed,
        commits,
    )
    assert found.in_node_s_per_byte.value == pytest.approx(model.in_node_s_per_byte.value, rel=1e-12, abs=1e-24)
    assert found.between_s_per_byte.value == pytest.approx(model.between_s_per_byte.value, rel=1e-12)


def test_a_short_file_by_hand(tmp_path):
    """What is left out is nothing, and 1e-2 is a number as people write it."""
    found = read(tmp_path, HAND)
    assert found.model == StepModel(sample_s=Term(value=0.01, source="data sheet"))
    assert (found.measured, found.sample_tokens, found.run) == ((), None, "")


def test_compute_by_a_data_sheet(tmp_path):
    """6 TFLOP of a sample at 400 TFLOP/s."""
    terms = "{sample_flops: {value: 6.0e+12}, flops_per_s: {value: 4.0e+14, source: data sheet, because: 40 % of H100}}"
    found = read(tmp_path, HAND.replace("{sample_s: {value: 1e-2, source: data sheet}}", terms))
    assert found.model.sample_s == Term(value=0.015, source="assumed", because="40 % of H100")


def test_one_bandwidth_counts_at_both_levels(tmp_path):
    """If only that within a node is written."""
    terms = "{sample_s: {value: 1}, in_node_gbps: {value: 2, source: assumed}, between_nodes_gbps: {value: null}}"
    found = read(tmp_path, HAND.replace("{sample_s: {value: 1e-2, source: data sheet}}", terms)).model
    assert found.in_node_s_per_byte == found.between_s_per_byte == Term(value=0.5e-9, source="assumed")
    assert found.round_s == NOTHING


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, "written by another version of planner (format 2, this one reads 1). Write it again"),
        ({"terms": None}, "terms: found null. Write the terms of a step"),
        ({"terms": {}}, "terms.sample_s: found nothing. Write a section with value and source"),
        ({"terms": {"sample_s": {"value": -1}}}, "terms.sample_s.value: found -1 (a whole number). Write a finite"),
        ({"terms": {"sample_s": {"value": ".nan"}}}, "Write a finite number of 0 or more"),
        ({"terms": {"sample_s": {"value": 1e300}}}, "Write a finite number of 0 or more"),
        ({"terms": {"sample_s": {"value": 10**400}}}, "Write a finite number of 0 or more"),
        ({"terms": {"sample_s": {"value": 0}}}, "terms.sample_s: found a section with the keys value. A step would"),
        (
            {"terms": {"sample_s": {"value": 1, "source": "guess"}}},
            'source: found "guess" (text). Write one of measured',
        ),
        ({"batch": {"global": 64}}, "batch.max_micro: found nothing. Write the batch.max_micro of the measured run"),
        ({"batch": {"global": 0, "max_micro": 8}}, "batch.global is 0"),
        ({"measured": 7}, "measured: found 7 (a whole number). Write a list of sections"),
        ({"measured": [{"world_size": 0, "seconds": 1}]}, "measured[0].world_size: found 0 (a whole number)"),
        ({"measured": [{"world_size": 2, "seconds": 0}]}, "measured[0].seconds: found 0 (a whole number)"),
        ({"settings": {"a": [1]}}, "settings.a: found a list of 1. Write a text"),
    ],
)
def test_a_wrong_file_says_where_and_what_to_write(tmp_path, change, error):
    """In one line."""
    values = {**yaml.safe_load(HAND), **change}
    with pytest.raises(UserError) as caught:
        read(tmp_path, yaml.safe_dump(values))
    assert str(caught.value).startswith(f"{tmp_path}/rates.yaml: ")
    assert error in str(caught.value)


numbers = st.sampled_from([0, 1e-300, 1e-30, 1e-3, 1, 1e6, 1e30])


@given(values=st.lists(numbers, min_size=8, max_size=8))
def test_whatever_is_read_gives_finite_times(tmp_path_factory, values):
    """The least and the greatest numbers that are read, in any combination."""
    terms = ("sample_flops", "flops_per_s", "round_s", "fixed_s", "in_node_gbps", "commit_s")
    text = yaml.safe_dump(
        {
            **yaml.safe_load(HAND),
            "terms": {name: {"value": value} for name, value in zip(terms, values, strict=False)},
            "traffic": {"gather_bytes": values[6], "reduce_bytes": values[7]},
        }
    )
    try:
        rates = read(tmp_path_factory.getbasetemp(), text)
    except UserError:
        return
    plan = make_plan(BatchSizes(global_batch=2**20, max_micro=1), 2)
    assert 0 < rates.speeds(rates.sizes).seconds_per_step(plan) < 1e200


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("name: job\n", "found no rates (no section terms). Write the path of a file that planner fit RUN wrote"),
        ("[", "found a YAML mistake"),
        ("a: &a [*a]", "an alias to a value that contains it"),
        ("", "found no rates"),
    ],
)
def test_other_files_are_refused(tmp_path, text, error):
    """With what to write."""
    with pytest.raises(UserError, match=r"rates\.yaml: ") as caught:
        read(tmp_path, text)
    assert error in str(caught.value)


def test_no_file_at_all(tmp_path):
    """The kind of file is named."""
    with pytest.raises(UserError, match=r"found no such file\. Write the path of a rates file"):
        read_rates(tmp_path / "none.yaml")
