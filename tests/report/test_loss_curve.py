"""A loss curve in characters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.loss_curve import loss_curve

FALLING = [(step, 5.0 - step / 20) for step in range(100)]


def test_a_falling_line_goes_from_the_top_left_to_the_bottom_right():
    """With its largest and smallest loss, and its first and last step."""
    assert loss_curve(FALLING, 21, 5) == [
        "4.925 ⠑⠒⠤⣀",
        "         ⠉⠒⠤⣀",
        "             ⠉⠒⠤⣀",
        "0.05             ⠉⠒⠤⣀",
        "     step 0        99",
    ]


def test_without_unicode_it_is_made_of_asterisks():
    """One character per column."""
    *drawn, steps = loss_curve(FALLING, 25, 6, ascii_only=True)
    assert "".join([*drawn, steps]).isascii()
    columns = [[row for row, line in enumerate(drawn) if len(line) > at and line[at] == "*"] for at in range(7, 25)]
    assert all(columns)
    assert columns == sorted(columns)


def test_a_jump_is_a_stroke_without_a_gap():
    """Every row between two values has a dot."""
    *drawn, _ = loss_curve([(0, 0.0), (1, 9.0)], 30, 8, ascii_only=True)
    assert all("*" in line for line in drawn)


@pytest.mark.parametrize(
    "points", [[], [(0, math.nan)], [(3, math.inf), (4, -math.inf)]], ids=["none", "not a number", "infinite"]
)
def test_nothing_is_drawn_without_a_finite_loss(points):
    assert loss_curve(points, 40, 10) == []


def test_one_step_is_a_dot():
    *drawn, steps = loss_curve([(7, 1.25)], 40, 4, ascii_only=True)
    assert sum(line.count("*") for line in drawn) == 1
    assert "step 7" in steps
    assert drawn[0].startswith("1.25")


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60),
    first=st.integers(0, 10**9),
    width=st.integers(0, 90),
    height=st.integers(0, 20),
    ascii_only=st.booleans(),
)
def test_it_never_passes_its_frame(values, first, width, height, ascii_only):
    """Any losses, any size."""
    drawn = loss_curve([(first + at, value) for at, value in enumerate(values)], width, height, ascii_only=ascii_only)
    assert len(drawn) in {0, height}
    assert all(len(line) <= width for line in drawn)
