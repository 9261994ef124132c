"""Durations: each has one written form, and converts to the nearest whole steps."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.job.duration import (
    PATTERN,
    SUCH_AS,
    Duration,
    RunLength,
    in_examples,
    in_steps,
    is_convertible,
    mismatch,
    parse,
)

BATCHES = st.integers(1, 4096)


@st.composite
def decimals(draw, most):
    """Above 0, with a few digits behind the point."""
    digits = draw(st.integers(0, 6))
    return Fraction(draw(st.integers(1, most * 10**digits)), 10**digits)


@st.composite
def durations(draw):
    """Durations in every unit."""
    unit = draw(st.sampled_from(["steps", "examples", "epochs", "%"]))
    whole = unit in {"steps", "examples"}
    amount = Fraction(draw(st.integers(1, 2**40))) if whole else draw(decimals(100))
    return Duration(amount=amount, unit=unit, rounded=unit == "examples" and draw(st.booleans()))


@st.composite
def run_lengths(draw):
    """Run lengths of a job whose data is open."""
    return RunLength(
        global_batch=draw(BATCHES), num_samples=draw(st.integers(1, 10**9)), total_steps=draw(st.integers(1, 10**7))
    )


@given(length=durations())
def test_what_is_written_reads_back(length):
    """And the schema's pattern takes it."""
    assert parse(str(length), least=1) == length
    assert re.search(PATTERN, str(length))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (100, "100 steps"),
        (1, "1 step"),
        (0, "0 steps"),
        ("1 steps", "1 step"),
        ("100 step", "100 steps"),
        ("64 examples", "64 examples"),
        ("1 example", "1 example"),
        ("20000 examples rounded", "20000 examples rounded"),
        ("0.50 epochs", "0.5 epochs"),
        (".5 epoch", "0.5 epochs"),
        ("1.0 epochs", "1 epoch"),
        ("10.00%", "10%"),
        ("0.05%", "0.05%"),
        ("100%", "100%"),
    ],
)
def test_there_is_one_way_to_write_each(written, text):
    """So equal jobs have equal digests."""
    assert str(parse(written)) == text


@pytest.mark.parametrize(
    "written",
    [
        *("", "9", "steps", "-1 steps", "1.5 steps", "1e3 steps", "010 steps", "9  steps", "9 Steps", "9 samples"),
        *("9%%", "5. epochs", "٣ steps", "9 steps\n", "9 steps rounded", "10% rounded", "100.1%", "1048577 epochs"),
        *(True, 1.0, None, -1, 2**40 + 1, f"{2**40 + 1} steps", f"{2**60 + 1} examples", "9" * 5000 + " steps", [9]),
    ],
)
def test_anything_else_is_refused(written):
    """Out of bounds, another number, another unit, another type."""
    with pytest.raises(ValueError, match=r"not a duration|out of bounds"):
        parse(written)


@pytest.mark.parametrize("written", [0, "0 steps", "0 examples", "0.0 epochs", "0%"])
def test_nothing_is_a_warmup_and_no_interval(written):
    """Evaluating every 0 steps would never end."""
    run = RunLength(global_batch=4, num_samples=100, total_steps=25)
    assert in_steps(parse(written), run) == 0
    with pytest.raises(ValueError, match="out of bounds"):
        parse(written, least=1)


@given(length=durations(), run=run_lengths())
def test_steps_are_the_nearest_and_never_none(length, run):
    """At most half a step away, unless that would be no step at all."""
    steps = in_steps(length, run)
    samples = {
        "steps": length.amount * run.global_batch,
        "examples": length.amount,
        "epochs": length.amount * run.num_samples,
        "%": length.amount / 100 * run.total_steps * run.global_batch,
    }[length.unit]
    away = abs(steps * run.global_batch - samples)
    assert steps >= 1
    assert away * 2 <= run.global_batch or (steps == 1 and samples < run.global_batch)


@given(amount=st.integers(1, 2**40), size=BATCHES)
def test_a_mismatch_names_both_neighbours_which_are_accepted(amount, size):
    """They are the multiples around it, with their steps. The form with `rounded` is accepted too."""
    reason = mismatch(Duration(amount=Fraction(amount), unit="examples"), size)
    assert bool(reason) == (amount % size != 0)
    if not reason:
        return
    named = re.findall(r"([0-9]+ examples?) \(([0-9]+ steps?)\)", reason)
    below = amount // size
    assert [parse(steps).amount for _, steps in named] == ([below, below + 1] if below else [1])
    for examples, steps in named:
        assert mismatch(parse(examples), size) == ""
        assert in_examples(parse(steps), size) == parse(examples)
    rounded = reason.rpartition(", or ")[2]
    assert mismatch(parse(rounded), size) == ""
    run = RunLength(global_batch=size, num_samples=0, total_steps=0)
    assert in_steps(parse(rounded), run) in {parse(steps).amount for _, steps in named}


def test_a_mismatch_is_a_sentence():
    """For the eval_every of the DPO repository."""
    assert mismatch(parse("20000 examples"), 64) == (
        "20000 examples is not a multiple of batch.global 64. Write 19968 examples (312 steps) "
        "or 20032 examples (313 steps), or 20000 examples rounded"
    )


# (samples in an epoch, steps of the run)
SEEN = [(0, 0), (0, 9), (9, 9)]


def test_what_takes_the_data_is_not_known_without_it():
    """A percentage is, where the run's length is."""
    known = [
        {
            text: is_convertible(parse(text), RunLength(global_batch=8, num_samples=samples, total_steps=steps))
            for text in SUCH_AS
        }
        for samples, steps in [(0, 0), (0, 9), (9, 9)]
    ]
    assert [list(each.values()) for each in known] == [
        [True, True, False, False],
        [True, True, False, True],
        [True, True, True, True],
    ]
