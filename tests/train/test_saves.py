"""What a generation does with its state after a step, by what the control message says."""

from types import SimpleNamespace

import pytest

from planner.train.control import Tally
from planner.train.saves import Saves

TOTAL_STEPS = 100


class Log:
    """Stands in for commits and copies: which calls came, in order."""

    def __init__(self, *, seals=True):
        self.calls = []
        self._seals = seals
        self.copies = SimpleNamespace(is_publishing=False, can_publish=True)

    def is_due(self):
        return True

    def copy(self, step, _cursor):
        self.calls.append(f"copy {step}")

    def keep(self, step, _cursor):
        self.calls.append(f"keep {step}")
        return self._seals

    def give_up(self):
        self.calls.append("give up")

    def begin(self, step, _cursor, *, is_last):
        self.calls.append(f"commit {step}{' at the end' if is_last else ''}")

    def finish(self):
        self.calls.append("finish")

    is_sealing = False


@pytest.fixture
def saved():
    """The calls for one step of which all workers said `said`."""

    def of(step, *, is_last=False, seals=True, again=False, is_sealing=False, **said):
        log = Log(seals=seals)
        log.is_sealing = is_sealing
        saves = Saves(
            world=SimpleNamespace(rank=0, world_size=2),
            commits=log,
            memory=log,
            pace=SimpleNamespace(did_hold=lambda _step: None),
            hooks=SimpleNamespace(may_hold=lambda: True),
            start=SimpleNamespace(step=0, durable_step=0, is_held=False),
            total_steps=TOTAL_STEPS,
        )
        if again:
            saves.save(step, 10 * step, Tally(denominators=(), commit=1), is_last=False)
            log.calls.clear()
        saves.save(step, 10 * step, Tally(denominators=(), **said), is_last=is_last)
        return log.calls, saves.is_held

    return of


def test_a_copy_waits_until_all_workers_have_published_the_last_one(saved):
    """It would take the place of the only copy that is whole. Rank 0 alone may have asked for it."""
    assert saved(3, copy=1)[0] == ["copy 3"]
    assert saved(3, copy=1, publishing=1)[0] == []


def test_a_commit_does_not_wait_for_copies(saved):
    assert saved(3, commit=1, copy=1, publishing=1)[0] == ["commit 3"]


def test_a_stop_stays_in_memory_and_gives_up_the_commit_in_flight(saved):
    assert saved(3, is_last=True, stop=1) == (["keep 3", "give up"], True)


def test_a_stop_while_a_copy_is_published_first_gives_up_the_commit(saved):
    """The commit is written from one of the two places, and the other one is being published."""
    calls, is_held = saved(3, is_last=True, stop=1, publishing=1)
    assert calls[:2] == ["give up", "keep 3"]
    assert is_held


@pytest.mark.parametrize("publishing", [0, 1])
def test_a_stop_whose_copy_fails_is_durable(saved, publishing):
    calls, is_held = saved(3, is_last=True, stop=1, seals=False, publishing=publishing)
    assert calls[-3:] == ["keep 3", "commit 3 at the end", "finish"]
    assert not is_held


@pytest.mark.parametrize(
    ("how", "calls", "is_held"),
    [
        pytest.param({"stop": 1}, ["keep 3", "give up"], True, id="its copy is the last step"),
        pytest.param({"stop": 1, "publishing": 1}, ["keep 3", "give up"], True, id="that is published now"),
        pytest.param({"stop": 1, "seals": False}, ["keep 3", "finish"], False, id="its copy fails"),
        pytest.param({"stop": 1, "is_sealing": True}, ["finish"], False, id="rank 0 writes its manifest"),
        pytest.param({"stop": 1, "must_commit": 1}, ["finish"], False, id="it must be durable"),
    ],
)
def test_a_stop_in_the_step_after_a_commit_finds_that_in_flight(saved, how, calls, is_held):
    """That step was abandoned. No second commit of the last step is begun."""
    assert saved(3, is_last=True, again=True, **how) == (calls, is_held)


@pytest.mark.parametrize("said", [{"must_commit": 1}, {"failed": 1}])
def test_what_makes_a_stop_durable(saved, said):
    calls, is_held = saved(3, is_last=True, stop=1, **said)
    assert calls == ["commit 3 at the end", "finish"]
    assert not is_held


def test_the_end_of_the_job_is_durable(saved):
    assert saved(TOTAL_STEPS, is_last=True, stop=1)[0] == [f"commit {TOTAL_STEPS} at the end", "finish"]


def test_a_step_that_the_generation_began_with_is_not_copied():
    """It is durable, or is in memory already."""
    copies = SimpleNamespace(is_publishing=False, can_publish=True)
    quiet = SimpleNamespace(has_written=False, has_sealed=False, is_silent=False, is_in_flight=False)
    saves = Saves(
        world=SimpleNamespace(rank=0, world_size=2),
        commits=quiet,
        memory=SimpleNamespace(copies=copies, is_due=lambda: True),
        pace=SimpleNamespace(due=lambda *_, **__: False),
        hooks=SimpleNamespace(may_hold=lambda: True),
        start=SimpleNamespace(step=3, durable_step=3, is_held=False),
        total_steps=TOTAL_STEPS,
    )
    assert [saves.said(step)["copy"] for step in (3, 4)] == [0, 1]


@pytest.mark.parametrize(
    ("said", "held"),
    [
        pytest.param({}, 4, id="all workers have published it"),
        pytest.param({"publishing": 1}, 3, id="one still sends it"),
        pytest.param({"must_commit": 1}, 3, id="one has lost its keeper"),
    ],
)
def test_a_copy_is_held_when_all_workers_have_published_it(said, held):
    """Until then, the step with which the generation began in memory is the newest."""
    saves = Saves(
        world=SimpleNamespace(rank=0, world_size=2),
        commits=SimpleNamespace(save_s=0.0),
        memory=Log(),
        pace=None,
        hooks=None,
        start=SimpleNamespace(step=3, durable_step=0, is_held=True),
        total_steps=TOTAL_STEPS,
    )
    nothing = Tally(denominators=())
    assert saves.times(3, nothing, is_last=False).copied_step == 3
    saves.save(4, 40, Tally(denominators=(), copy=1), is_last=False)
    assert saves.times(5, Tally(denominators=(), **said), is_last=False).copied_step == held
    assert saves.times(6, nothing, is_last=False).copied_step == 4
