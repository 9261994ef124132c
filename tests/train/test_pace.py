"""When to commit, on a clock of the test's own."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.events.saves import CommitInterval
from planner.plan.interval import checkpoint_interval
from planner.story.earlier import EarlierGenerations
from planner.train.pace import FIRST_COMMIT_S, MOST_WORK_S, EverySteps, MeasuredPace

NOTHING = EarlierGenerations(losses=0, observed_s=0.0, save_times=())


def past(**changed):
    return EarlierGenerations(**{"losses": 0, "observed_s": 0.0, "save_times": (1.0,), **changed})


class Training:
    """Call the pace as the loop does, once per step: ask, record, land the commit in flight, begin another."""

    def __init__(self, seen, *, save_s=1.0, write_s=0.0, slower_s=0.0, step=0, last_step=math.inf):
        self.now_s = 1000.0
        self.pace = MeasuredPace(seen, step, last_step, lambda: self.now_s)
        self.step, self.save_s, self.write_s, self.slower_s = step, save_s, write_s, slower_s
        self.commits, self.news, self.waits = [], [], 0
        self.durable_at_s = None
        """when the commit in flight will be durable. None if there is none"""

    def run(self, num_steps, step_s):
        for _ in range(num_steps):
            is_writing = self.durable_at_s is not None
            took_s = step_s + self.slower_s * is_writing
            self.step += 1
            self.now_s += took_s
            due = self.pace.due(self.step, is_writing=is_writing)
            if note := self.pace.did_step(took_s):
                self.news.append(note)
            if is_writing and self.now_s >= self.durable_at_s:
                self.land()
            if due:
                self.commit()
        return self

    def land(self):
        self.pace.did_land(self.save_s, self.write_s)
        self.durable_at_s = None

    def commit(self):
        if self.durable_at_s is not None:
            self.waits += 1
            self.now_s = max(self.now_s, self.durable_at_s)
            self.land()
        self.now_s += self.save_s
        self.pace.did_hold(self.step)
        self.commits.append(self.step)
        self.durable_at_s = self.now_s + self.write_s


def gaps(commits):
    return [after - before for before, after in pairwise(commits)]


@pytest.mark.parametrize("every_steps", [1, 3, 10])
def test_a_number_of_steps_is_that_number(every_steps):
    """Multiples, whatever was measured; nothing is said."""
    pace = EverySteps(every_steps)
    due = []
    for step in range(1, 31):
        if pace.due(step, is_writing=step % 2 == 0):
            due.append(step)
            pace.did_hold(step)
            pace.did_land(1e6, 1e6)
        assert not pace.did_step(1e6)
    assert due == list(range(every_steps, 31, every_steps))


@pytest.mark.parametrize("step_s", [0.01, 0.5, 3.0, 600.0])
def test_the_first_commit_of_a_run_comes_early(step_s):
    """At the first step that ends 10 s after the start."""
    training = Training(NOTHING).run(math.ceil(11 / step_s), step_s)
    assert training.commits[0] == pytest.approx(FIRST_COMMIT_S / step_s, abs=1) or training.commits[0] == 1


def test_then_the_interval_is_the_formulas():
    """A save of 1 s: every sqrt(2 * 3600) = 85 s less 1 s, a little more as time passes without a loss."""
    training = Training(NOTHING, save_s=1.0).run(1000, 0.5)
    measured = gaps(training.commits)
    assert 166 <= measured[0] <= 172
    assert measured == sorted(measured)
    assert (training.news[0].steps, training.news[0].measured.save_s, training.news[0].steps_left) == (169, 1.0, None)


@pytest.mark.parametrize("factor", [4, 16])
def test_the_interval_follows_what_a_save_takes(factor):
    """By the root of it, once two of the last three saves took so long."""
    training = Training(past()).run(2000, 0.5)
    cheap = gaps(training.commits)[-1]
    training.save_s *= factor
    training.run(6000, 0.5)
    assert gaps(training.commits)[-1] == pytest.approx(cheap * math.sqrt(factor), rel=0.35)
    assert gaps(training.commits)[-1] > 1.5 * cheap
    assert len(training.news) >= 2


def test_the_interval_follows_what_a_step_takes():
    """The same time in fewer steps is not reported again."""
    training = Training(past()).run(400, 0.5)
    quick = gaps(training.commits)[-1]
    training.run(300, 5.0)
    assert gaps(training.commits)[-1] == pytest.approx(quick / 10, abs=3)
    assert len(training.news) == 1


def test_more_losses_make_it_shorter():
    """Of two runs of equal length; the event says how many."""
    few, many = (Training(past(losses=n, observed_s=36_000.0)).run(2000, 0.5) for n in (0, 20))
    assert gaps(many.commits)[0] < gaps(few.commits)[0] / 3
    assert many.news[0].measured.losses == 20


def test_a_resumed_run_needs_no_early_commit():
    """What a save takes is known; the first interval counts from where it begins."""
    training = Training(past(), step=5000).run(400, 0.5)
    assert training.commits[0] == pytest.approx(5000 + 168, abs=3)


def test_one_slow_first_step_is_no_measure():
    """Nothing is told before the third, and the median passes it over."""
    training = Training(past()).run(1, 30.0).run(1, 0.5)
    assert not training.news
    training.run(200, 0.5)
    assert training.commits == pytest.approx([168], abs=3)
    assert len(training.news) == 1


@pytest.mark.parametrize("step_s", [0.5, 60.0, 700.0, 4000.0])
def test_no_more_than_half_an_hour_is_at_risk(step_s):
    """Where the formula would wait for hours. Longer steps: a commit is known to be durable one step after it."""
    training = Training(past(save_times=(100.0,), observed_s=1e7), save_s=100.0).run(
        3 * int(MOST_WORK_S / step_s + 3), step_s
    )
    assert max(gaps(training.commits)) == max(2, int(MOST_WORK_S / step_s))
    assert training.news[0].steps < training.news[0].measured.steps


def test_the_cap_holds_where_few_steps_take_most_of_the_time():
    """The median is a second, and every twentieth step takes 10 minutes."""
    training = Training(past(save_times=(100.0,), observed_s=1e7), save_s=100.0)
    for _ in range(30):
        training.run(19, 1.0).run(1, 600.0)
    assert max(gaps(training.commits)) <= 62


def test_what_is_told_once_is_not_told_again():
    """Steps that jitter by a half, and an interval of one or two of them, change nothing that matters."""
    jittering, few = Training(past()), Training(past())
    for i in range(200):
        jittering.run(1, 0.5 + 0.25 * (i % 3))
        few.run(1, 50.0 + 3.0 * (i % 2))
    assert len(jittering.news) == len(few.news) == 1


def test_the_interval_is_the_functions_own():
    """From the median of what was measured, at the time of asking."""
    training = Training(past(losses=2, observed_s=500.0)).run(3, 0.5)
    expected = checkpoint_interval(save_s=1.0, step_s=0.5, losses=2, observed_s=501.5)
    assert training.news == [
        CommitInterval(steps=expected.steps, work_s=expected.work_s, measured=expected, steps_left=None)
    ]


# -- commits that are written beside training


def test_no_commit_begins_while_one_is_written():
    """A write of 100 s where saves cost so little that the formula would wait for 13 s."""
    training = Training(past(save_times=(0.02,)), save_s=0.02, write_s=100.0).run(3000, 0.5)
    assert training.waits == 0
    assert set(gaps(training.commits)) == {201}
    assert training.news[-1].measured.write_s == pytest.approx(100)


def test_slower_steps_beside_a_write_count_as_the_cost_of_a_save():
    """A pause of 0.1 s, and 100 steps that take half a second longer: a save costs 50 s, not 0.1 s."""
    training = Training(past(save_times=()), save_s=0.1, write_s=100.0, slower_s=0.5).run(5000, 0.5)
    expected = checkpoint_interval(save_s=0.1 + 0.5 * 100, step_s=0.5, losses=0, observed_s=training.now_s - 1000.0)
    assert gaps(training.commits)[-1] == pytest.approx(expected.steps, rel=0.2)
    assert any(event.measured.save_s == pytest.approx(50, abs=0.5) for event in training.news)


def test_few_steps_beside_a_write_say_nothing():
    """Two of them, each of twice the usual time: that may be chance."""
    training = Training(past(save_times=()), save_s=1.0, write_s=1.0, slower_s=0.5).run(60, 0.5)
    assert len(training.commits) == 1
    assert training.news[0].measured.save_s == pytest.approx(1)


def test_a_write_beside_which_steps_are_quicker_earns_nothing():
    """Noise must not make a save cost less than its pause."""
    training = Training(past(save_times=()), save_s=1.0, write_s=20.0, slower_s=-0.2).run(1000, 0.5)
    assert all(event.measured.save_s == pytest.approx(1) for event in training.news)


def test_half_an_hour_at_risk_is_the_limit_while_a_commit_is_written_too():
    """A write that takes two hours: the next commit waits for it, no later than after 30 minutes of work."""
    training = Training(past(), write_s=7200.0).run(2000, 10.0)
    assert training.waits >= 1
    assert max(gaps(training.commits)) <= MOST_WORK_S / 10.0 + 2


@given(
    step_s=st.floats(0.05, 400),
    save_s=st.floats(0, 60),
    write_s=st.floats(0, 4000),
    slower_s=st.floats(0, 20),
    losses=st.integers(0, 30),
    saves=st.lists(st.floats(0, 60), max_size=3),
)
def test_commits_never_overlap_nor_leave_more_than_half_an_hour(step_s, save_s, write_s, slower_s, losses, saves):
    """Whatever is measured: a commit waits for another only at the limit, and comes after at most two more steps."""
    training = Training(past(losses=losses, save_times=tuple(saves)), save_s=save_s, write_s=write_s, slower_s=slower_s)
    training.run(300, step_s)
    longest_s = step_s + slower_s
    most = MOST_WORK_S / step_s + 2
    assert all(gap <= most for gap in gaps(training.commits))
    for gap in gaps(training.commits):
        # As long as the write took, or the limit came first.
        assert gap * longest_s >= min(write_s, MOST_WORK_S) - longest_s or write_s <= longest_s
    if write_s < MOST_WORK_S:
        assert training.waits == 0


@pytest.mark.process
def test_it_needs_no_torch():
    """A decision is arithmetic."""
    code = "import sys, planner.train.pace; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_interval_beyond_the_end_is_told_as_what_it_comes_to():
    """The event must not promise a commit that never comes."""
    training = Training(NOTHING, last_step=100).run(50, 0.5)
    [event] = training.news
    assert event.steps_left == 100 - training.commits[0] - 2
    assert Training(NOTHING, last_step=300).run(50, 0.5).news[0].steps_left is None
