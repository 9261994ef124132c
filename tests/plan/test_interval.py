"""How often to commit."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.plan.interval import checkpoint_interval

numbers = {
    "save_s": st.floats(0, 600),
    "step_s": st.floats(1e-3, 600),
    "losses": st.integers(0, 1000),
    "observed_s": st.floats(0, 1e7),
}
HOUR_S = 3600.0


def expected_overhead(work_s, save_s, between_losses_s):
    """What Young minimises: saving, and half an interval done again per loss."""
    return save_s / work_s + work_s / (2 * between_losses_s)


@given(**numbers)
def test_it_is_at_least_one_step_and_saving_takes_at_most_a_quarter(save_s, step_s, losses, observed_s):
    """For any rate of losses. Half a step of rounding is allowed."""
    steps = checkpoint_interval(save_s=save_s, step_s=step_s, losses=losses, observed_s=observed_s).steps
    assert steps >= 1
    assert save_s <= 0.25 * (save_s + (steps + 0.5) * step_s) * (1 + 1e-9)


@given(**numbers)
def test_more_losses_never_make_it_longer_and_a_dearer_save_never_shorter(save_s, step_s, losses, observed_s):
    """Monotone in both."""
    here = checkpoint_interval(save_s=save_s, step_s=step_s, losses=losses, observed_s=observed_s).steps
    assert checkpoint_interval(save_s=save_s, step_s=step_s, losses=losses + 1, observed_s=observed_s).steps <= here
    between_s = (observed_s + HOUR_S) / (losses + 1)
    assume(save_s < between_s / 10)
    assert checkpoint_interval(save_s=save_s * 2, step_s=step_s, losses=losses, observed_s=observed_s).steps >= here


@given(save_s=st.floats(0.1, 10), losses=st.integers(0, 5), observed_s=st.floats(0, 1e6), other=st.floats(0.1, 10))
def test_no_other_interval_loses_much_less(save_s, losses, observed_s, other):
    """Within 2% of the least that the model allows, where losses are rare against saves."""
    between_s = (observed_s + HOUR_S) / (losses + 1)
    assume(between_s > 100 * save_s)
    work_s = checkpoint_interval(save_s=save_s, step_s=1e-3, losses=losses, observed_s=observed_s).steps * 1e-3
    ours = expected_overhead(work_s + save_s, save_s, between_s)
    assert ours <= 1.02 * expected_overhead(other * work_s, save_s, between_s)


def test_the_prior_is_one_loss_in_an_hour():
    """Nothing seen, a save of 1 s: every 84 s, as sqrt(2 * 1 * 3600) = 85 less the save."""
    interval = checkpoint_interval(save_s=1.0, step_s=0.5, losses=0, observed_s=0.0)
    assert interval.steps * 0.5 == pytest.approx(math.sqrt(2 * HOUR_S) - 1, abs=0.6)
    assert (interval.work_s, interval.between_losses_s) == (interval.steps * 0.5, HOUR_S)


def test_ten_calm_hours_make_it_longer():
    """One loss in eleven hours is expected then."""
    calm = checkpoint_interval(save_s=1.0, step_s=1.0, losses=0, observed_s=10 * HOUR_S)
    assert calm.steps == pytest.approx(math.sqrt(2 * 11 * HOUR_S), abs=2)
    assert calm.between_losses_s == 11 * HOUR_S


def test_a_save_that_costs_nothing_is_made_after_every_step():
    """And is not divided by."""
    assert checkpoint_interval(save_s=0.0, step_s=1.0, losses=0, observed_s=0.0).steps == 1


@given(**numbers, write_s=st.floats(0, 1e4))
def test_no_commit_would_wait_for_the_one_before(save_s, step_s, losses, observed_s, write_s):
    """The interval is at least the time of a write, and otherwise the one without it."""
    given_ = {"save_s": save_s, "step_s": step_s, "losses": losses, "observed_s": observed_s}
    steps, alone = checkpoint_interval(**given_, write_s=write_s).steps, checkpoint_interval(**given_).steps
    assert steps * step_s >= write_s * (1 - 1e-9)
    assert steps == alone or (steps > alone and (steps - 1) * step_s < write_s)


@pytest.mark.parametrize("write_s", [-1.0, math.inf, math.nan])
def test_an_impossible_time_to_write_is_refused(write_s):
    """By name."""
    with pytest.raises(ValueError, match="no interval for write_s="):
        checkpoint_interval(save_s=1.0, step_s=1.0, losses=0, observed_s=0.0, write_s=write_s)


@pytest.mark.parametrize(
    "wrong", [{"save_s": -1.0}, {"step_s": 0.0}, {"losses": -1}, {"observed_s": math.inf}, {"save_s": math.nan}]
)
def test_impossible_numbers_are_refused(wrong):
    """By name."""
    numbers = {"save_s": 1.0, "step_s": 1.0, "losses": 0, "observed_s": 0.0}
    with pytest.raises(ValueError, match="no interval for save_s="):
        checkpoint_interval(**{**numbers, **wrong})
