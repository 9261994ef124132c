"""What `planner watch` reads: the driver by its lease, the live state by its file, and the run when it changes."""

import re
import shutil

import pytest
from made_runs import header, step, write_run

from planner.cli.run_watcher import LeaseWatch, RunWatcher
from planner.errors import StoreError
from planner.report.watched_run import run_state
from planner.store.lease import DriverLease
from planner.store.lease_record import FoundLease, lease_name, this_driver
from planner.store.records import seal
from planner.store.run_status import STATUS_FILE, RunStatus
from planner.store.storage import Storage

STATUS = RunStatus(
    launch="l", time_s=0.0, state="Running", why="", next="no resize", least=1, most=4, nodes=(), workers=()
)


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def run(recorded, tmp_path):
    """A copy of a finished run."""
    shutil.copytree(recorded.run, tmp_path / "run")
    return tmp_path / "run"


def word(seen):
    return run_state(seen).word


DRIVER = this_driver("l", beat_s=5.0)


def lease(**values):
    return FoundLease(3, seal(DRIVER.model_copy(update=values)))


def test_a_finished_run_is_read(run):
    """Its steps, losses, events and its newest commit."""
    seen = RunWatcher(str(run)).look()
    assert word(seen) == "finished"
    assert [step for step, _ in seen.losses] == [1, 2, 3, 4]
    assert (seen.story.step, seen.committed_step, seen.story.generation) == (4, 4, 2)
    assert seen.committed_time_s
    assert any("held-out loss" in event.text for event in seen.events)


def test_a_run_that_begins_is_noticed(run, tmp_path):
    """In a folder that was empty at first."""
    begun = tmp_path / "begun"
    begun.mkdir()
    watcher = RunWatcher(str(begun))
    assert word(watcher.look()) == "not started"
    shutil.copytree(run, begun, dirs_exist_ok=True)
    assert word(watcher.look()) == "finished"


def test_the_live_state_is_that_of_the_driver_that_holds_the_run(run):
    """One of an earlier launch is not shown."""
    storage, watcher = Storage(str(run)), RunWatcher(str(run))
    with DriverLease(storage, "l", lambda _line: None):
        assert word(watcher.look()) == "starting"
        storage.write(STATUS_FILE, seal(STATUS.model_copy(update={"launch": "earlier"})))
        assert word(watcher.look()) == "starting"
        storage.write(STATUS_FILE, seal(STATUS))
        assert word(watcher.look()) == "training"
    assert word(watcher.look()) == "finished"


def test_a_live_state_that_does_not_change_is_old(run):
    """By the watcher's own clock."""
    storage, clock = Storage(str(run)), Clock()
    watcher = RunWatcher(str(run), clock)
    with DriverLease(storage, "l", lambda _line: None):
        storage.write(STATUS_FILE, seal(STATUS))
        assert word(watcher.look()) == "training"
        clock.now_s += 20
        assert word(watcher.look()) == "no live state"
        storage.write(STATUS_FILE, seal(STATUS.model_copy(update={"time_s": 5.0})))
        assert word(watcher.look()) == "training"


def test_a_driver_on_this_machine_is_known_by_its_pid():
    """Dead, if its process is gone and it did not release the run."""
    watch = LeaseWatch(Clock())
    assert watch.driver(None) == "none"
    assert watch.driver(lease()) == "alive"
    assert watch.driver(lease(started="1")) == "dead"
    assert watch.driver(lease(held=False)) == "ended"


def test_a_driver_elsewhere_is_known_by_its_renewals():
    """Held until the lease is renewed, and silent when it is not for four beats."""
    clock = Clock()
    watch = LeaseWatch(clock)
    assert watch.driver(lease(place="there")) == "elsewhere"
    clock.now_s += 5
    assert watch.driver(lease(place="there", beat=1)) == "alive"
    clock.now_s += 19
    assert watch.driver(lease(place="there", beat=1)) == "alive"
    clock.now_s += 2
    assert watch.driver(lease(place="there", beat=1)) == "silent"
    assert watch.unchanged_s == 21
    assert watch.driver(lease(place="there", beat=2)) == "alive"
    assert watch.driver(lease(place="there", beat=3, held=False)) == "ended"


def test_a_damaged_run_is_broken(run):
    (run / "run.json").write_text("{")
    seen = RunWatcher(str(run)).look()
    assert word(seen) == "broken"
    assert "run.json" in seen.problem


def test_a_store_that_is_away_leaves_the_last_look(run, monkeypatch):
    """With the reason, until it answers again."""
    watcher = RunWatcher(str(run))
    before = watcher.look()

    def refuse(*_):
        raise StoreError("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "names", refuse)
        away = watcher.look()
    assert away.store_error == "timed out"
    assert away.story == before.story
    assert watcher.look().store_error == ""


def test_a_lease_that_cannot_be_read_is_no_error(run):
    """Another version's, for example."""
    Storage(str(run)).write(lease_name(9), b"{")
    assert RunWatcher(str(run)).look().driver == "elsewhere"


def test_no_other_command_reads_the_live_state(run, cli):
    """The audit is clean, and lists and details are as without it."""
    commands = [("audit", run), ("runs", run), ("show", run)]
    before = [cli(*command) for command in commands]
    Storage(str(run)).write(STATUS_FILE, b"{")
    for command, without in zip(commands, before, strict=True):
        answer = cli(*command)
        assert (answer.code, answer.err) == (without.code, without.err) == (0, "")
        assert without_ages(answer.out) == without_ages(without.out)


def without_ages(text):
    """Without the padding, too: a column is as wide as its longest age."""
    return re.sub(r" +", " ", re.sub(r"[0-9.]+ (s|min) ago", "ago", text))


@pytest.mark.parametrize("changed", [{"layout_version": 99}, {"world_size": 0}])
def test_a_generation_without_a_plan_is_a_broken_run(tmp_path, changed):
    """Of a newer version of planner, or damaged. It stays so, although its records are not read again."""
    write_run(tmp_path / "run", [header(1, 2, 0, **changed), step(0)]).claim_generation({})
    watcher = RunWatcher(str(tmp_path / "run"))
    for _ in range(2):
        seen = watcher.look()
        assert word(seen) == "broken"
        assert seen.problem.startswith("the ledger: ")


def test_the_largest_step_that_a_ledger_may_name_is_shown(tmp_path):
    """One more is done after it."""
    run = write_run(tmp_path / "run", [header(1, 2, 0), step(2**63 - 1, cursor=0)])
    run.storage.write("generations/000001.json", b"{}")  # the claim: only claimed generations are followed
    assert RunWatcher(str(tmp_path / "run")).look().losses[-1][0] == 2**63


def test_the_losses_of_a_long_run_are_few_and_end_with_its_last_step(tmp_path, monkeypatch):
    """A board looks each second, so it keeps means. A loss beyond 1e100 stays one, and the curve leaves it out."""
    monkeypatch.setattr("planner.cli.run_watcher._MOST_POINTS", 8)
    records = [header(1, 2, 0, total_steps=100), *(step(at, loss=1e200 if at == 3 else 2.0) for at in range(100))]
    write_run(tmp_path / "run", records).storage.write("generations/000001.json", b"{}")
    losses = RunWatcher(str(tmp_path / "run")).look().losses
    assert 4 <= len(losses) < 8
    assert losses[-1][0] == 100
    assert {loss for _, loss in losses if loss < 1e100} == {2.0}
