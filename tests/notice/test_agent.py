"""The agent with a cloud and a node that are handed in: what it passes on, how often, and what ends it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import RunError
from planner.notice.agent import Agent, is_news, pause_s
from planner.notice.fetch import Unreachable
from planner.notice.notice import Notice, Trouble

NOW_S = 1000.0


def notice(in_s, what="taken"):
    return Notice(what=what, deadline_s=NOW_S + in_s)


ADVICE = Notice(what="advice", deadline_s=math.inf)
OUTAGE = Trouble(what="HTTP status 503", is_outage=True)
MALFORMED = Trouble(what="a malformed answer", detail="b'{'")


class Sky:
    """A cloud that returns its answers in turn, then repeats the last one."""

    name = "Sky"
    poll_s = 1.0

    def __init__(self, *brings):
        self.brings = list(brings)

    def answers(self):
        return True

    def look(self, _now_s):
        found = self.brings.pop(0) if len(self.brings) > 1 else self.brings[0]
        if isinstance(found, Exception):
            raise found
        return found


class Machine:
    """A node that records its drains. It refuses the first `refuses` of them, and answers `lives` in turn."""

    def __init__(self, refuses=0, lives=()):
        self.drains, self.refuses, self.lives = [], refuses, list(lives)

    def drain(self, remaining_s, message):
        assert message
        if self.refuses:
            self.refuses -= 1
            raise RunError("no answer")
        self.drains.append(remaining_s)

    def is_alive(self):
        found = self.lives.pop(0) if len(self.lives) > 1 else self.lives[0]
        if isinstance(found, Exception):
            raise found
        return found


def turns(machine, *brings, count=None, **options):
    """The lines that an agent prints while it looks `count` times."""
    said = []
    agent = Agent(Sky(*brings), machine, said.append, clock=lambda: NOW_S, **{"follow_advice": False, **options})
    for _ in range(count or len(brings)):
        agent.turn()
    return said


def test_a_notice_is_passed_on_once_however_often_it_comes():
    machine = Machine()
    said = turns(machine, None, notice(120), count=50)
    assert machine.drains == [120.0]
    assert said == ["Sky: taken", "passed on to Ray: 120 s left"]


def test_an_earlier_deadline_is_passed_on_and_a_later_one_is_not():
    machine = Machine()
    turns(machine, notice(120), notice(119.5), notice(300), notice(30), notice(120), notice(-5))
    assert machine.drains == [120.0, 30.0, 0.0]


def test_what_could_not_be_passed_on_is_tried_again():
    """The head may be away for a moment. It is reported once."""
    machine = Machine(refuses=3)
    said = turns(machine, notice(120), count=10)
    assert machine.drains == [120.0]
    assert sum("will try again" in line for line in said) == 1


def test_advice_is_left_unless_one_follows_it():
    machine = Machine()
    said = turns(machine, ADVICE, count=5)
    assert machine.drains == []
    assert len(said) == 1
    assert "--rebalance" in said[0]


def test_advice_that_is_followed_has_no_deadline_and_the_notice_after_it_has():
    machine = Machine()
    turns(machine, ADVICE, ADVICE, notice(120), ADVICE, follow_advice=True)
    assert machine.drains == [math.inf, 120.0]


def test_malformed_answers_are_said_once_and_a_notice_after_them_counts():
    machine = Machine()
    said = turns(machine, *[MALFORMED] * 20, None, MALFORMED, notice(60))
    assert sum("malformed" in line for line in said) == 1
    assert machine.drains == [60.0]


def test_an_outage_is_said_when_it_begins_and_when_it_ends():
    said = turns(Machine(), OUTAGE, Unreachable("timed out"), OUTAGE, None, None, OUTAGE)
    assert ["again" in line.split(".")[0] for line in said] == [False, True, False]


def test_a_notice_that_goes_away_is_not_taken_back():
    machine = Machine()
    said = turns(machine, notice(60), None, None, notice(60), None)
    assert machine.drains == [60.0]
    assert sum("Ray cannot cancel a drain" in line for line in said) == 1


SEEN = (
    st.none()
    | st.sampled_from([ADVICE, OUTAGE, MALFORMED])
    | st.integers(-100, 400).map(notice)
    | st.builds(Unreachable, st.text(max_size=5))
)


@given(st.lists(SEEN, min_size=1, max_size=30), st.integers(0, 5), st.booleans())
def test_whatever_comes_deadlines_only_become_earlier_and_the_earliest_arrives(brings, refuses, follow):
    """No order of looks and refusals leaves the node with a later deadline than the cloud has named."""
    machine = Machine(refuses)
    turns(machine, *brings, brings[-1], count=len(brings) + 10, follow_advice=follow)
    assert all(later < earlier for earlier, later in zip(machine.drains, machine.drains[1:], strict=False))
    if isinstance(brings[-1], Notice) and not brings[-1].is_advice:
        assert machine.drains[-1] <= max(brings[-1].deadline_s - NOW_S, 0) + 1


@given(st.floats(0.5, 10), st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_stay_within_bounds(poll_s, outages, dice):
    """Within 20% of the cloud's poll interval, and at most 12 s, since a notice may come only 30 s ahead."""
    assert 0.8 * poll_s <= pause_s(poll_s, outages, dice) <= max(poll_s, 10) * 1.2
    assert pause_s(poll_s, 0, dice) <= 1.2 * poll_s


@given(st.floats(-1e9, 1e12), st.floats(-1e9, 1e12))
def test_of_two_notices_at_most_one_is_news_to_the_other(first, second):
    assert is_news(first, None)
    assert not (is_news(first, second) and is_news(second, first))


@pytest.mark.parametrize(
    ("lives", "ends"),
    [
        ([True, False], "has left its Ray cluster"),
        ([True, RunError("no answer")], "has not answered for"),
        ([RunError("no answer"), True, RunError("no answer"), True, False], "has left its Ray cluster"),
    ],
)
def test_the_agent_ends_with_its_node(lives, ends):
    """The head may be away for a while, not for longer than Ray's nodes would wait for it."""
    said, now = [], [NOW_S]

    def sleep(seconds):
        now[0] += seconds

    sky = Sky(None)
    Agent(sky, Machine(lives=lives), said.append, follow_advice=False, clock=lambda: now[0], sleep=sleep).run()
    assert ends in said[-1]
    assert 5 <= now[0] - NOW_S < 90
