"""One driver per run: which driver gets the lease, which is refused, and which learns that it has lost the lease."""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from events import EVENT_S, wait_for

from planner.errors import AnotherDriver, NewerFormat, PlannerError, StoreError
from planner.store.lease import DriverLease
from planner.store.lease_record import LeaseRecord, lease_name, this_driver
from planner.store.records import seal, unseal
from planner.store.storage import Storage

BEAT_S = 7.0


class Watching:
    """Records what a driver says and how long it sleeps. Each `sleep` returns at once and calls the next of `turns`."""

    def __init__(self, *turns):
        self.said, self.slept_s, self._turns = [], [], list(turns)

    def sleep(self, seconds):
        self.slept_s.append(seconds)
        if self._turns:
            self._turns.pop(0)()

    def lease(self, storage, launch="mine", **more):
        # A beat that never comes by itself, unless a test wants it to.
        return DriverLease(storage, launch, self.said.append, sleep=self.sleep, **{"beat_s": 60.0, **more})


def foreign(**changes):
    """A driver on another machine, whose processes cannot be checked."""
    elsewhere = {"launch": "theirs", "host": "far", "place": "elsewhere", "pid": 4321}
    return this_driver("", BEAT_S).model_copy(update={**elsewhere, **changes})


def dead():
    """A driver of this machine whose pid now belongs to a later process, this one."""
    return this_driver("dead", BEAT_S).model_copy(update={"started": "0"})


def put(storage, driver, number=1):
    storage.write(lease_name(number), seal(driver))


def newest(storage) -> tuple[int, LeaseRecord]:
    name = storage.names("drivers")[-1]
    return int(name.removesuffix(".json")), unseal(storage.read(f"drivers/{name}"), LeaseRecord, name)


def refusal(lease) -> str:
    """The message with which the lease refuses to begin."""
    began = []
    # A flag, since leaving the context may raise as well.
    with pytest.raises(AnotherDriver) as refused, lease:
        began.append(True)
    assert not began
    assert isinstance(refused.value, PlannerError)
    assert refused.value.exit_code == 1
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_driver_holds_its_run_and_gives_it_back(storage):
    """The next driver takes the next number, and no older lease file is left."""
    for number in (1, 2, 3):
        watching = Watching()
        with watching.lease(storage, f"launch {number}"):
            last, held = newest(storage)
            assert last == number
            assert (held.launch, held.pid, held.held) == (f"launch {number}", os.getpid(), True)
        assert not newest(storage)[1].held
        assert storage.names("drivers") == [f"{number:06d}.json"]
        assert (watching.said, watching.slept_s) == ([], [])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_it_is_given_back_on_any_way_out(storage, error):
    """After an error, Ctrl-C or an exit. The exception goes on unchanged."""
    with pytest.raises(error), Watching().lease(storage):
        raise error
    assert not newest(storage)[1].held


def test_a_second_driver_on_this_machine_is_refused_at_once(storage):
    """Without a wait. One line names the holder and how to stop it. The holder's lease is unchanged."""
    second = Watching()
    with Watching().lease(storage):
        before = newest(storage)
        line = refusal(second.lease(storage, "second"))
        assert newest(storage) == before
    assert (second.said, second.slept_s) == ([], [])
    assert f"pid {os.getpid()} on {before[1].host}, since 2" in line
    assert f"(kill {os.getpid()} on" in line
    assert f"remove {storage.url}/drivers/000001.json" in line


@pytest.mark.process
@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_driver_is_taken_over_at_once(storage, reaped):
    """Also while it is a zombie that its parent has not reaped."""
    code = (
        "import sys; from planner.store.lease import DriverLease; from planner.store.storage import Storage\n"
        f"with DriverLease(Storage({storage.url!r}), 'killed', print): print('held', flush=True); sys.stdin.read()"
    )
    if not storage.is_local:
        pytest.skip("no other process sees this one's memory")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    with process:
        assert process.stdout.readline() == b"held\n"
        second = Watching()
        assert f"pid {process.pid} on" in refusal(second.lease(storage))
        process.kill()
        # Without reaping it: until this returns, it is dying, and after, a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
        with second.lease(storage):
            assert newest(storage)[0] == 2
        assert (second.said, second.slept_s) == ([], [])


def test_a_pid_that_another_process_has_now_is_a_dead_driver(storage):
    """The start time of the process tells them apart."""
    put(storage, dead())
    watching = Watching()
    with watching.lease(storage):
        assert newest(storage)[1].launch == "mine"
    assert watching.slept_s == []


def test_a_driver_elsewhere_that_beats_is_refused(storage):
    """The second driver waits for renewals at the holder's interval. The first renewal decides."""
    put(storage, foreign())
    watching = Watching(lambda: None, lambda: put(storage, foreign(beat=1)))
    assert "pid 4321 on far" in refusal(watching.lease(storage))
    assert watching.slept_s == [BEAT_S, BEAT_S]
    assert len(watching.said) == 1
    assert "another driver (pid 4321 on far, since " in watching.said[0]
    assert watching.said[0].endswith("held this run: watching its lease for 21 s")
    assert newest(storage) == (1, foreign(beat=1, since_s=newest(storage)[1].since_s))


def test_a_driver_elsewhere_that_is_silent_is_taken_over(storage):
    """After three missed renewals. One line says so, and the old lease file is removed."""
    put(storage, foreign(), number=41)
    watching = Watching()
    with watching.lease(storage):
        assert newest(storage)[0] == 42
    assert watching.slept_s == [BEAT_S] * 3
    assert len(watching.said) == 1
    assert storage.names("drivers") == ["000042.json"]


def test_without_proc_a_driver_is_watched(storage):
    """Without boot and pid namespace, an equal host name proves nothing."""
    put(storage, this_driver("dead", BEAT_S).model_copy(update={"place": ""}))
    watching = Watching()
    with watching.lease(storage):
        assert watching.slept_s == [BEAT_S] * 3


def test_one_that_gives_it_back_while_it_is_watched_has_ended(storage):
    """A release is not a renewal."""
    put(storage, foreign())
    watching = Watching(lambda: put(storage, foreign(beat=1, held=False)))
    with watching.lease(storage):
        assert newest(storage)[0] == 2
    assert watching.slept_s == [BEAT_S]


def test_one_that_is_taken_over_while_it_is_watched_is_not_judged_for_its_heir(storage):
    """The new holder is watched separately."""
    put(storage, foreign())
    heir = foreign(launch="heir", pid=5)
    watching = Watching(lambda: put(storage, heir, 2), lambda: put(storage, heir.model_copy(update={"beat": 1}), 2))
    assert "pid 5 on far" in refusal(watching.lease(storage))
    assert len(watching.said) == 2


GARBAGE = [b"", b"\0\xff", b"[]", seal(foreign())[:-9], seal(foreign()).replace(b"4321", b"1")]


@pytest.mark.parametrize("content", GARBAGE)
def test_a_lease_that_cannot_be_read_is_watched(storage, content):
    """It is torn or altered. If it changes, its driver is alive. If not, the lease is taken over."""
    storage.write(lease_name(1), content)
    beating = Watching(lambda: storage.write(lease_name(1), content + b" "))
    assert "drivers/000001.json cannot be read" in refusal(beating.lease(storage))
    silent = Watching()
    with silent.lease(storage):
        assert newest(storage)[0] == 2
    assert len(silent.slept_s) == 3
    assert silent.said[0].startswith("a driver whose drivers/000001.json cannot be read held this run: watching its ")


@pytest.mark.parametrize("value", [{"format": 2}, {"pid": 1}, {"format": True}])
def test_another_versions_lease_is_refused(storage, value):
    """Only that version can tell whether its driver still runs."""
    storage.write(lease_name(1), json.dumps({"sha256": "", "value": value}).encode())
    with pytest.raises(NewerFormat, match=r"drivers/000001\.json: written .*this (one|version of planner) reads"):
        Watching().lease(storage).__enter__()


@pytest.mark.parametrize("before", [None, dead()])
def test_of_8_threads_that_start_at_once_one_drives(tmp_path, before):
    """Twenty times, on a new folder or after a dead driver. `memory://` is not atomic for threads, so only on disk."""
    for attempt in range(20):
        storage = Storage(str(tmp_path / str(attempt)))
        if before is not None:
            put(storage, before)
        begun, decided = Barrier(8, timeout=EVENT_S), Barrier(8, timeout=EVENT_S)

        def drive(number, storage=storage, begun=begun, decided=decided):
            begun.wait()
            try:
                with Watching().lease(storage, str(number)):
                    decided.wait()
            except AnotherDriver:
                decided.wait()
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(drive, range(8))).count(True) == 1


def race(url, number, rounds, barrier, won):
    for turn in range(rounds):
        barrier.wait()
        try:
            with Watching().lease(Storage(url), f"{number} in {turn}"):
                won.put(turn)
                barrier.wait()
        except AnotherDriver:
            barrier.wait()


@pytest.mark.process
def test_of_4_processes_that_start_at_once_one_drives(tmp_path):
    """Thirty times on one run, each time after the last holder released it."""
    context = multiprocessing.get_context("forkserver")
    barrier, won = context.Barrier(4, timeout=EVENT_S), context.Queue()
    drivers = [context.Process(target=race, args=(str(tmp_path), i, 30, barrier, won), daemon=True) for i in range(4)]
    for driver in drivers:
        driver.start()
    turns = [won.get(timeout=EVENT_S) for _ in range(30)]
    for driver in drivers:
        driver.join(EVENT_S)
    assert [driver.exitcode for driver in drivers] == [0] * 4
    assert sorted(turns) == list(range(30))
    assert won.empty()
    assert newest(Storage(str(tmp_path)))[0] == 30


class Interposed(Storage):
    """Calls `meanwhile` just before it creates its lease."""

    meanwhile = staticmethod(lambda: None)

    def create(self, name, content):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().create(name, content)


def test_a_number_that_is_free_again_is_not_won(url, storage):
    """A later driver deleted lease 1. The higher number counts, and the late driver is refused."""
    late = Interposed(url)
    # Between its look (no lease) and its claim of number 1: one took 1 and died, the next took 2 and tidied 1 away.
    late.meanwhile = lambda: put(storage, this_driver("heir", BEAT_S), 2)
    assert refusal(Watching().lease(late))
    assert storage.names("drivers") == ["000002.json"]
    assert newest(storage)[1].launch == "heir"


@pytest.mark.parametrize(
    ("content", "whose"),
    [(seal(foreign()), "another driver (pid 4321 on far, since "), (b"torn", "a driver whose drivers/000002.json can")],
)
def test_a_driver_that_was_taken_over_is_told(storage, content, whose):
    """After a suspension, its next renewal finds the higher number and does not overwrite the other lease."""
    lost = Event()

    def drive():
        storage.write(lease_name(2), content)
        assert lost.wait(EVENT_S)

    with pytest.raises(AnotherDriver) as stopped, Watching().lease(storage, beat_s=0.01, on_lost=lost.set):
        drive()
    assert whose in str(stopped.value)
    assert "has taken over this run" in str(stopped.value)
    assert storage.read(lease_name(2)) == content


def test_by_default_the_process_is_interrupted(storage):
    """Like Ctrl-C, so workers end and commits are kept. The message has the reason."""
    went_on = []

    def drive():
        put(storage, foreign(), 2)
        Event().wait(EVENT_S)
        went_on.append(True)

    with pytest.raises(AnotherDriver, match="taken over this run"), Watching().lease(storage, beat_s=0.01):
        drive()
    assert not went_on


def test_a_lease_removed_by_hand_lets_another_driver_in(storage):
    """The first driver does not write it again, goes on alone, and stops when another driver has taken the run."""

    def drive(lease):
        storage.delete("drivers")
        lease._renew(held=True)
        assert storage.names("drivers") == []
        with Watching().lease(storage, "second"):
            # The same number: the launch tells them apart.
            lease._renew(held=True)
            assert (newest(storage)[0], newest(storage)[1].launch) == (1, "second")

    with pytest.raises(AnotherDriver, match="taken over this run"), Watching().lease(storage) as lease:
        drive(lease)


class Unreachable(Storage):
    """A store that raises some errors, also of unknown types, and then works again."""

    def __init__(self, url):
        super().__init__(url)
        self.errors, self.back = [], Event()

    def names(self, folder):
        if self.errors:
            raise self.errors.pop()
        return super().names(folder)

    def write(self, name, content):
        if self.errors:
            raise self.errors.pop()
        super().write(name, content)
        self.back.set()


def test_a_store_that_is_away_for_a_while_ends_nothing(url):
    """The driver retries silently after any error, and renews the lease when the store is back."""
    storage = Unreachable(url)
    with Watching().lease(storage, beat_s=0.01):
        before = newest(Storage(url))[1]
        storage.errors = [StoreError("away"), RuntimeError("a client library's own")] * 10
        wait_for(lambda: not storage.errors)
        storage.back.clear()  # a write may have been under way when the errors came
        assert storage.back.wait(EVENT_S)
        assert newest(Storage(url))[1].beat > before.beat
    assert not newest(Storage(url))[1].held


def test_a_store_that_is_away_at_the_end_does_not_spoil_it(url):
    """The lease stays held. The next driver finds out by itself."""
    storage = Unreachable(url)
    with Watching().lease(storage):
        storage.errors = [StoreError("away")]
    assert newest(Storage(url))[1].held


def test_a_store_that_cannot_be_read_at_the_start_is_said(url):
    """Nothing was started yet."""
    storage = Unreachable(url)
    storage.errors = [StoreError("away")]
    with pytest.raises(StoreError, match="away"), Watching().lease(storage):
        pytest.fail("it began")
