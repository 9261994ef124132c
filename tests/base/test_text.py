"""Durations and estimates as people read them."""

import math

import pytest

from planner.base.text import about, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "0.004 s"), (0.35, "0.35 s"), (25, "25 s"), (2400, "40 min"), (10_080, "2.8 h"), (100_000, "28 h"),
        (200_000, "2.3 days"), (1e7, "116 days"), (1e9, "32 years"), (1e12, "31,688 years"), (math.inf, "for ever"),
    ],
)  # fmt: skip
def test_a_duration_has_the_unit_that_people_use(seconds, text):
    """From milliseconds to years, with at least two digits."""
    assert duration(seconds) == text


def test_an_estimate_has_a_floor():
    """Below it, digits would say nothing."""
    assert about(12.3) == "about 12 s"
    assert about(0.1) == "about 0.1 s"
    assert about(0.0999) == about(0.0) == "less than 0.1 s"
