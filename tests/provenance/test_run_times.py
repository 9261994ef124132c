"""Where a run's time went: each second has one use."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.provenance.run_times import RunClock, RunTimes
from planner.store.records import (
    CommitRecord,
    EventRecord,
    GenerationRecord,
    MeasurementRecord,
    StepRecord,
    TrainingIdentity,
)

IDENTITY = TrainingIdentity(
    global_batch=64,
    seed=0,
    data="d" * 64,
    model="e" * 64,
    optimizer="adamw",
    equality="balanced",
    recipe="f" * 64,
)


def header(number, *, step, time_s, launch="a", launched_s=0.0):
    return GenerationRecord(
        generation=number,
        run_id="r",
        parent="",
        parent_sha256="",
        step=step,
        cursor=step * 64,
        world_size=2,
        max_micro=8,
        layout_version=1,
        plan_digest="p",
        identity=IDENTITY,
        job_digest="c" * 64,
        total_steps=100,
        num_samples=1000,
        facts={},
        changed=(),
        launch_id=launch,
        launched_s=launched_s,
        time_s=time_s,
    )


def step(number, seconds=2.0):
    return StepRecord(
        step=number,
        cursor=(number + 1) * 64,
        samples=64,
        tokens=100,
        checksum="0" * 16,
        loss=1.0,
        grad_norm=1.0,
        lr=0.1,
        seconds=seconds,
    )


def commit(number, seconds=1.0):
    return CommitRecord(step=number, name=f"{number:012d}-000001", sha256="e" * 64, seconds=seconds)


def measurement(number, time_s):
    return MeasurementRecord(
        step=number,
        num_steps=1,
        seconds=2.0,
        input_tokens=0,
        padded_tokens=0,
        flops=0.0,
        peak_flops_per_s=0.0,
        peak_memory_bytes=0,
        data_s=0.0,
        forward_s=0.0,
        backward_s=0.0,
        update_s=0.0,
        communication_s=0.0,
        time_s=time_s,
    )


def times_of(*records):
    clock = RunClock()
    for record in records:
        clock.add(record)
    return clock.times


def test_steps_after_the_last_commit_are_lost_and_done_again():
    """A death after step 3, with a commit before step 2: two steps are lost, and two later ones are redone."""
    times = times_of(
        header(1, step=0, time_s=10.0, launched_s=4.0),
        *map(step, range(2)),
        commit(2),
        *map(step, range(2, 4)),
        header(2, step=2, time_s=30.0),
        *map(step, range(2, 6)),
    )
    assert times == RunTimes(
        trained_s=6 * 2.0, lost_s=4.0, redone_s=4.0, committing_s=1.0, paused_s=6.0 + (30.0 - 10.0 - 8.0 - 1.0)
    )
    assert times.total_s == 30.0 + 8.0 - 4.0  # from the driver's start to the last record


def test_a_damaged_commit_undoes_its_steps():
    """Commits before steps 2 and 4, then a resume from the older one, and from no commit at all."""
    first = (header(1, step=0, time_s=0.0), *map(step, range(2)), commit(2), *map(step, range(2, 4)), commit(4))
    older = times_of(*first, step(4), header(2, step=2, time_s=12.0), *map(step, range(2, 5)), commit(5))
    assert (older.trained_s, older.lost_s, older.redone_s) == (5 * 2.0, 3 * 2.0, 3 * 2.0)
    none = times_of(*first, header(2, step=0, time_s=10.0), *map(step, range(5)))
    assert (none.trained_s, none.lost_s, none.redone_s) == (5 * 2.0, 4 * 2.0, 4 * 2.0)


def test_the_time_between_two_drivers_is_not_a_pause():
    times = times_of(
        header(1, step=0, time_s=10.0, launched_s=10.0),
        step(0),
        commit(1),
        header(2, step=1, time_s=120.0, launch="b", launched_s=100.0),
    )
    assert (times.stopped_s, times.paused_s) == (87.0, 20.0)


def test_waiting_for_room_is_told_apart_from_the_pause_around_it():
    times = times_of(
        header(1, step=0, time_s=0.0),
        step(0),
        commit(1),
        header(2, step=1, time_s=63.0),
        EventRecord(message="waited", waited_s=50.0, time_s=64.0),
        step(1),
        measurement(2, 70.0),
        measurement(3, 80.0),
    )
    assert (times.waiting_s, times.paused_s) == (50.0, 60.0 - 50.0 + 1.0 + 4.0)


@given(
    gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=6),
    seconds=st.lists(st.floats(0.001, 100), min_size=1, max_size=5),
    kept=st.integers(0, 5),
)
def test_every_second_has_one_use(gaps, seconds, kept):
    """Over any history, the uses add up to the time from the first header to the last record."""
    clock, first = RunClock(), min(kept, len(seconds))
    now_s = 1000.0
    for number, gap_s in enumerate(gaps):
        now_s += gap_s
        clock.add(header(number + 1, step=0 if number == 0 else first, time_s=now_s))
        for at, spent_s in enumerate(seconds):
            clock.add(step(at, spent_s))
            now_s += spent_s
            if at + 1 == first:
                clock.add(commit(first))
                now_s += 1.0
    assert clock.now_s == pytest.approx(now_s)
    assert clock.times.total_s == pytest.approx(now_s - 1000.0 - gaps[0])
    assert all(value >= -1e-6 for value in asdict(clock.times).values())
