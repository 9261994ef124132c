"""When workers ask each other whether to abandon a step, and when they leave it. One worker, with a clock by hand."""

from types import SimpleNamespace

import pytest
import torch

from planner.train import cuts
from planner.train.cuts import Cuts
from planner.train.hooks import Hooks


class Worker:
    """Rank 0, or another one whose rank 0 says `gaps`. A peer may want to leave from a round on."""

    def __init__(self, monkeypatch, *, rank=0, gaps=(), hooks=None):
        self.now_s, self.begun, self.ended = 1000.0, [], []
        """the rounds before which a sum began, and before which it was waited for"""
        self._round, self._gaps, self.leaves_from = 0, list(gaps), 10**9
        monkeypatch.setattr(cuts.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(cuts.dist, "all_reduce", self._all_reduce)
        world = SimpleNamespace(rank=rank, device=torch.device("cpu"), object_group=None)
        self.cuts = Cuts(world, hooks or Hooks(should_cut=lambda: False))

    def _all_reduce(self, numbers, *, op, group, async_op):
        assert (op, group, async_op) == (torch.distributed.ReduceOp.SUM, None, True)
        self.begun.append(self._round)
        numbers[0] += self._round >= self.leaves_from
        if self._gaps:
            assert numbers[1] == 0  # only rank 0 has the clock
            numbers[1] += self._gaps.pop(0)
        return SimpleNamespace(wait=lambda: self.ended.append(self._round))

    def step(self, times, gap=None):
        """Compute the rounds of a step, which take so long each. Gives how many were done."""
        self.begun.clear(), self.ended.clear()
        self.cuts.begin_step(self.cuts.first_gap(len(times)) if gap is None else gap)
        self.cuts.begin_rounds()
        for self._round, round_s in enumerate(times):
            if self.cuts.leave_before(self._round, len(times)):
                return self._round
            self.now_s += round_s
        self.cuts.end_rounds(len(times))
        return len(times)


@pytest.fixture
def worker(monkeypatch):
    return Worker(monkeypatch)


def test_long_rounds_ask_before_each_and_wait_at_once(worker):
    """Also in the first step, of which nothing is known."""
    for _ in range(2):
        assert worker.step([2.0] * 5) == 5
        assert worker.begun == worker.ended == [1, 2, 3, 4]


def test_a_first_step_finds_out_how_long_rounds_are(worker):
    """More and more rounds later, until that is an interval. From then on, each sum runs beside rounds."""
    worker.step([1 / 64] * 500)
    assert worker.begun == [1, 2, 2, 4, 6, 10, 16, 26, 42, 68, 110, 174, 238, 302, 366, 430]
    assert worker.ended == [1, 2, 4, 6, 10, 16, 26, 42, 68, 110, 174, 238, 302, 366, 430, 494]


def test_measured_rounds_ask_about_once_a_second(worker):
    """By the last step. The last sum has an end within the step."""
    worker.step([0.25] * 40)
    assert worker.step([0.25] * 40) == 40
    assert worker.begun == [4, 8, 12, 16, 20, 24, 28, 32]
    assert worker.ended == [8, 12, 16, 20, 24, 28, 32, 36]


@pytest.mark.parametrize("times", [[0.3] * 13, [100.0], [0.001] * 1000], ids=["3.9 s", "one round", "many"])
def test_steps_that_are_short_or_have_one_round_do_not_ask(worker, times):
    worker.step([times[0]] * 13)
    assert worker.step(times) == len(times)
    assert worker.begun == []


@pytest.mark.parametrize(
    ("round_s", "asked_from", "left_before"),
    [
        pytest.param(2.0, 4, 4, id="at once"),
        pytest.param(0.25, 12, 16, id="an interval later"),
        pytest.param(0.25, 13, 20, id="asked just after a sum began"),
        pytest.param(0.25, 33, 40, id="too late: the step is finished"),
    ],
)
def test_all_leave_when_the_sum_says_so(worker, round_s, asked_from, left_before):
    worker.step([round_s] * 40)
    worker.leaves_from = asked_from
    assert worker.step([round_s] * 40) == left_before


def test_a_worker_that_is_asked_to_leave_says_so(monkeypatch):
    wants = []
    worker = Worker(monkeypatch, hooks=Hooks(should_cut=lambda: bool(wants)))
    worker.step([2.0] * 3)
    wants.append(None)
    assert worker.step([2.0] * 3) == 1


def test_other_ranks_follow_rank_0(monkeypatch):
    """Whatever they measure. The control message has the first number, and each sum the next one."""
    worker = Worker(monkeypatch, rank=1, gaps=[2, 3, 1, 1, 5, 5])
    assert worker.cuts.first_gap(20) == 0
    assert worker.step([7.0] * 20, gap=4) == 20
    assert worker.begun == [4, 8, 10, 13, 14, 14]
    # The sum that begins before round 10 says 1: the next one is waited for at once.
    assert worker.ended == [8, 10, 13, 13, 14, 19]


def test_nobody_asks_where_nobody_can_want_to_leave(monkeypatch):
    """Loops without a controller."""
    worker = Worker(monkeypatch, hooks=Hooks(should_stop=lambda _step: True))
    assert worker.step([100.0] * 5) == 5
    assert worker.begun == []


def test_a_repeated_step_begins_anew(worker):
    """After as many rounds as the newest sum has said."""
    worker.step([2.0] * 5)
    worker.cuts.begin_step(2)
    for _attempt in range(2):
        worker.begun.clear()
        worker.cuts.begin_rounds()
        assert not any(worker.cuts.leave_before(number, 5) for number in range(5))
    assert len(worker.begun) == 4
