"""How often a wait is mentioned."""

from functools import partial
from itertools import pairwise

from events import EVENT_S, wait_for
from hypothesis import given
from hypothesis import strategies as st

from planner.base.wait_reports import Activity, WaitReports, reminded


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


class Clock:
    """Time that passes by 0.25 s at each look of the thread, and a script of what the work does at which second."""

    def __init__(self, end_s, script):
        self.now_s, self._end_s, self._script = 0.0, end_s, script

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        """As `Event.wait`: the work of these seconds, and whether it is over."""
        self.now_s += seconds
        for at_s in [at_s for at_s in self._script if at_s <= self.now_s]:
            self._script.pop(at_s)()
        return self.now_s >= self._end_s

    def set(self):
        """The thread ends by the script alone."""


def said_in(end_s, begin=(), update=()):
    """What is said, and at which second, in work of `end_s` seconds. `begin` and `update` are second -> text."""
    said, script = [], {}
    clock = Clock(end_s, script)
    activity = Activity(lambda line: said.append((clock.now_s, line)), "first", clock, clock)
    script |= {at_s: partial(activity.begin, text) for at_s, text in dict(begin).items()}
    script |= {at_s: partial(activity.update, text) for at_s, text in dict(update).items()}
    with activity:
        pass
    return said


def test_no_silence_is_longer_than_three_seconds_at_the_start_of_any_work():
    """Also where the work goes on with something else. After it, lines come at growing intervals."""
    assert said_in(2.9) == []
    assert said_in(30) == [(s, f"first ({s} s so far)") for s in (3, 6, 12, 24)]
    changed = said_in(14, begin={4: "second"})
    assert changed == [(3, "first (3 s so far)"), (6, "second (2 s so far)"), (9, "second (5 s so far)")]
    short = said_in(9, begin={number: f"work {number}" for number in range(1, 9)})
    assert short == [(3, "work 3"), (6, "work 6")]


def test_work_that_comes_further_is_one_work():
    """A count that changes each moment prints no line each moment."""
    counts = {number / 2: f"{number} of 100" for number in range(1, 50)}
    assert said_in(25, update=counts) == [
        (3, "6 of 100 (3 s so far)"),
        (6, "12 of 100 (6 s so far)"),
        (12, "24 of 100 (12 s so far)"),
        (24, "48 of 100 (24 s so far)"),
    ]
