"""How often a wait is mentioned."""

from itertools import pairwise

from events import EVENT_S, wait_for
from hypothesis import given
from hypothesis import strategies as st

from planner.base.wait_reports import WaitReports, reminded


@given(st.floats(0.1, 100))
def test_a_wait_of_a_month_is_explained_and_fills_no_log(first_s):
    """First after a while, then at twice the wait each time, and at last about hourly."""
    reminders, month_s = WaitReports(first_s), 30 * 24 * 3600
    said, waited_s = [], 0.0
    while waited_s < month_s:
        waited_s = reminders.next_s
        assert reminders.due(waited_s)
        assert not reminders.due(waited_s)
        said.append(waited_s)
    assert said[0] == first_s
    gaps = [later - earlier for earlier, later in pairwise(said)]
    assert all(later > earlier - 0.01 for earlier, later in pairwise(gaps))
    assert max(gaps) <= 3600.1
    assert len(said) < month_s / 3600 + 20
    reminders.reset()
    assert reminders.due(first_s)


def test_a_call_that_does_not_return_is_mentioned_while_it_lasts():
    """And no more when it has."""
    said = []
    with reminded(said.append, "waiting for the disk", first_s=0.02):
        wait_for(lambda: len(said) >= 3)
    with reminded(said.append, "never", first_s=EVENT_S):
        pass
    assert said[0] == "waiting for the disk (0 s so far)"
    assert all("disk" in message for message in said)
