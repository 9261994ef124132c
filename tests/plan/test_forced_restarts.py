"""How long the time until the next forced restart is expected to be, and when that will be enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan.forced_restarts import NONE_FORCED, ForcedRestarts


@st.composite
def launches(draw):
    """A launch with up to 12 forced restarts, seconds to hours apart, and a time after them."""
    now_s = draw(st.floats(-1e6, 1e6))
    restarts = ForcedRestarts(since_s=now_s)
    for gap_s in draw(st.lists(st.floats(0.1, 20_000), max_size=12)):
        now_s += gap_s
        restarts = restarts.after(now_s)
    return restarts, now_s + draw(st.floats(0, 50_000))


@given(launch=launches(), needed_s=st.floats(0, 1e6))
def test_what_is_needed_is_expected_from_the_time_that_it_names(launch, needed_s):
    """And not before, unless that is now."""
    restarts, now_s = launch
    from_s = restarts.expected_from_s(needed_s, now_s)
    assert from_s >= now_s
    assert restarts.expected_s(from_s) >= needed_s - 1e-3
    if from_s > now_s:
        assert restarts.expected_s(now_s) < needed_s + 1e-3
        assert restarts.expected_s((from_s + now_s) / 2) < needed_s + 1e-3


@given(launch=launches(), needed_s=st.floats(0, 1e6))
def test_a_calm_of_twice_what_is_needed_is_enough(launch, needed_s):
    """Whatever came before, so no growth is put off for ever."""
    restarts, now_s = launch
    calm_since_s = restarts.times[-1] if restarts.times else restarts.since_s
    assert restarts.expected_from_s(needed_s, now_s) <= max(now_s, calm_since_s + 2 * needed_s + 1e-3)


def test_the_last_eight_restarts_count():
    """A day with one an hour is forgotten after eight that came minute by minute."""
    restarts = ForcedRestarts(since_s=0.0)
    for hour in range(1, 25):
        restarts = restarts.after(hour * 3600.0)
    assert restarts.expected_s(24 * 3600.0) == pytest.approx(8 / 9 * 3600)
    for minute in range(1, 9):
        restarts = restarts.after(24 * 3600.0 + minute * 60.0)
    assert restarts.expected_s(24 * 3600.0 + 480.0) == pytest.approx((420 + 3600) / 9)


def test_a_launch_begins_with_an_hour():
    """Without any measurement, and with half of its calm from then on."""
    restarts = ForcedRestarts(since_s=100.0)
    assert restarts.expected_s(100.0) == 3600
    assert restarts.after(100.0).expected_s(100.0) == 1800
    assert restarts.after(100.0).expected_s(100.0 + 10_000) == pytest.approx((10_000 + 3600) / 2)
    assert NONE_FORCED.expected_from_s(1e9, 5.0) == 5.0
