"""When copies into the keepers' memory are due."""

from itertools import pairwise

import pytest

from planner.events.saves import CopyInterval
from planner.train.memory_copies import CopyPace


def copied(every, steps, *, step_s=1.0, copy_s=0.001):
    """The steps after which a copy was made. As in the loop: asked when a step ends, and told of it afterwards."""
    pace, found, events = CopyPace(every), [], []
    for step in range(1, steps + 1):
        is_due = pace.is_due()
        events.append(pace.did_step(step_s))
        if is_due:
            pace.did_copy(copy_s)
            found.append(step)
    return found, [*filter(None, events)]


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_number_is_the_number_of_steps_between_copies(every):
    assert copied(every, 20)[0] == list(range(every, 21, every))


def test_off_makes_none():
    assert copied("off", 20) == ([], [])


def test_auto_copies_at_once_when_it_knows_steps_and_then_so_that_it_costs_two_percent():
    """A copy of 0.1 s for steps of 1 s: every 5 steps."""
    found, events = copied("auto", 40, copy_s=0.1)
    assert found[0] == 4
    assert {b - a for a, b in pairwise(found)} == {5}
    assert events == [CopyInterval(steps=5, copy_s=0.1)]


def test_a_small_change_of_the_interval_is_not_told():
    """On a busy machine, times vary by a factor of two from copy to copy."""
    pace, events = CopyPace("auto"), []
    for copy_s in [0.04] * 20 + [0.1, 0.04, 0.02] * 20 + [0.1] * 20 + [0.2] * 20:
        while not pace.is_due():
            events.append(pace.did_step(1.0))
        events.append(pace.did_step(1.0))
        pace.did_copy(copy_s)
    assert [event for event in events if event] == [
        CopyInterval(steps=2, copy_s=0.04),
        CopyInterval(steps=10, copy_s=0.2),
    ]


def test_a_copy_that_waits_for_another_is_made_late():
    """It stays due until it is made. The next one is due as long after it."""
    pace = CopyPace(2)
    for _ in range(4):
        pace.did_step(1.0)
        assert pace.is_due()
    pace.did_copy(0.001)
    assert not pace.is_due()
    pace.did_step(1.0)
    assert pace.is_due()
