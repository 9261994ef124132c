"""Save times and losses that are read from earlier generations."""

import pytest

from planner.dispatch.launch import earlier_sample_s
from planner.store.ledger import LedgerWriter, segment_name
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    StepRecord,
    TrainingIdentity,
)
from planner.store.run_folder import RunFolder
from planner.story.earlier import (
    CommitCost,
    EarlierGenerations,
    last_commit_cost,
    last_steps,
    num_recorded,
    read_earlier,
    summarize_earlier,
)

BEGAN_S = 1_700_000_000.0
SEEN = EvalRecord(step=2, samples=3, tokens=9, loss=1.0, seconds=1.0)
# What a person reads may quote what a program reads.
TOLD = EventRecord(message='stopped: "kind":"step" and "kind":"commit"', time_s=BEGAN_S)


def step(number, seconds=0.5):
    return StepRecord(
        step=number, cursor=0, samples=4, tokens=4, checksum="0" * 16, loss=1.0, grad_norm=1.0, lr=0.1, seconds=seconds
    )


def commit(number, generation=1, seconds=1.0, sha256="e" * 64, write_s=0.0):
    name = f"{number:012d}-{generation:06d}"
    return CommitRecord(step=number, name=name, sha256=sha256, seconds=seconds, write_s=write_s)


def write(storage, generation, *records, time_s=BEGAN_S):
    identity = TrainingIdentity(
        global_batch=4,
        seed=0,
        data="0" * 64,
        model="0" * 64,
        optimizer="adamw",
        equality="balanced",
        recipe="0" * 64,
    )
    header = GenerationRecord(
        generation=generation,
        run_id="r",
        parent="",
        parent_sha256="",
        step=0,
        cursor=0,
        world_size=1,
        max_micro=4,
        layout_version=1,
        plan_digest="p",
        identity=identity,
        job_digest="0" * 64,
        total_steps=8,
        num_samples=50,
        facts={},
        changed=(),
        time_s=time_s,
    )
    ledger = LedgerWriter(storage, header, NO_HEAD)
    for record in records:
        ledger.write(record)
    ledger.flush()


def read(storage, before=99, now_s=BEGAN_S + 60.0):
    return read_earlier(RunFolder(storage), before=before, now_s=now_s)


def test_a_new_run_has_no_past(storage):
    """A run that has only claims has none either."""
    assert read(storage) == EarlierGenerations(losses=0, observed_s=0.0, save_times=())
    RunFolder(storage).claim_generation({})
    assert read(storage) == EarlierGenerations(losses=0, observed_s=0.0, save_times=())


@pytest.mark.parametrize(
    ("records", "losses"),
    [
        pytest.param([], 0, id="nothing was done, nothing was lost"),
        pytest.param([step(0)], 1, id="died before its first commit"),
        pytest.param([step(0), step(1), commit(2)], 0, id="stopped with a commit"),
        pytest.param([step(0), step(1), commit(2), SEEN, TOLD], 0, id="evaluated after its last commit"),
        pytest.param([step(0), commit(1), step(1)], 1, id="died after a commit"),
        pytest.param([step(0), commit(1), step(1), SEEN, TOLD], 1, id="died after an evaluation"),
        pytest.param([step(0), commit(1), step(1), commit(2), TOLD], 0, id="committed twice"),
        pytest.param([step(0), step(1), step(2), commit(1)], 1, id="died after a commit of fewer steps was durable"),
        pytest.param([step(0), step(1), step(2), commit(1), TOLD], 1, id="likewise, with a note behind it"),
        pytest.param([step(0), step(1), commit(1), step(2), commit(3)], 0, id="stopped after a background commit"),
        pytest.param([step(0), step(1), SEEN, commit(2)], 0, id="a commit that covers the last step"),
        pytest.param([step(0), commit(1), step(1), step(2), commit(2)], 1, id="the second commit covers all but one"),
    ],
)
def test_a_generation_that_left_steps_behind_was_lost(storage, records, losses):
    """A generation that stopped with notice ends with a commit."""
    write(storage, 1, *records)
    assert read(storage).losses == losses


def test_losses_add_up_over_earlier_generations_alone(storage):
    """The observed time starts at the first generation. The last three saves are kept."""
    write(storage, 1, step(0), commit(1, seconds=7.0), step(1))
    write(storage, 2, step(1), commit(2, 2, 2.0), step(2), commit(3, 2, 3.0), time_s=BEGAN_S + 20)
    write(storage, 3, step(3), commit(4, 3, 4.0), step(4), time_s=BEGAN_S + 40)
    write(storage, 4, step(4), time_s=BEGAN_S + 50)
    assert read(storage, before=4) == EarlierGenerations(losses=2, observed_s=60.0, save_times=(2.0, 3.0, 4.0))
    assert read(storage, before=2) == EarlierGenerations(losses=1, observed_s=60.0, save_times=(7.0,))


def test_costs_are_those_of_commits_in_the_background(storage):
    """The last commit of a generation is waited for: its pause says nothing of the others. Old records have no time."""
    write(storage, 1, step(0), commit(1, seconds=9.0))
    assert (read(storage).save_times, read(storage).write_times) == ((9.0,), ())
    last = commit(4, 2, 8.0, write_s=8.0)
    write(storage, 2, step(1), step(2), commit(2, 2, 0.1, write_s=7.0), step(3), last, time_s=BEGAN_S + 20)
    assert (read(storage).save_times, read(storage).write_times) == ((0.1,), (7.0, 8.0))
    write(storage, 3, *(commit(n, 3, n / 10, write_s=5.0 + n) for n in (5, 6, 7)), time_s=BEGAN_S + 30)
    assert (read(storage).save_times, read(storage).write_times) == ((0.5, 0.6, 0.7), (10.0, 11.0, 12.0))


def test_the_last_commit_on_record_says_what_a_commit_takes(storage):
    """Of any generation, until it was durable, with the number of workers. A new generation may have none yet."""
    run = RunFolder(storage)
    assert last_commit_cost(run) is None
    write(storage, 1, step(0), commit(1, seconds=9.0))
    assert last_commit_cost(run) == CommitCost(seconds=9.0, world_size=1)
    write(storage, 2, step(1), commit(2, 2, 0.1, write_s=7.0), step(2), commit(3, 2, 0.2, write_s=6.0), step(3))
    write(storage, 3, step(3))
    assert last_commit_cost(run) == CommitCost(seconds=6.0, world_size=1)


def test_a_torn_step_was_lost_too(storage):
    """A crash tore the line of that step."""
    write(storage, 1, step(0), commit(1))
    storage.append(segment_name(1), b'{"head":"00","record":{"checksum":"0","kind":"step","st')
    assert read(storage) == EarlierGenerations(losses=1, observed_s=60.0, save_times=(1.0,))


def test_a_clock_that_is_ahead_and_a_header_that_is_gone_tell_nothing(storage):
    """The observed time is 0. Losses still count."""
    write(storage, 1, step(0))
    assert read(storage, now_s=BEGAN_S - 5).observed_s == 0.0
    assert summarize_earlier(b"not a ledger line\n", [b'"kind":"step"'], BEGAN_S) == EarlierGenerations(
        losses=1, observed_s=0.0, save_times=()
    )


def test_only_the_ends_of_the_newest_are_read(storage, monkeypatch):
    """A run with many generations, one of them long, is read as fast as a short one."""
    for generation in range(1, 41):
        write(storage, generation, step(0), time_s=BEGAN_S + generation)
    write(storage, 41, *map(step, range(2000)), commit(2000, 41, 5.0), time_s=BEGAN_S + 41)
    sizes = []
    for method in ("read_from", "read_first"):
        read_part = getattr(storage, method)
        monkeypatch.setattr(storage, method, lambda *at, r=read_part: sizes.append(len(r(*at))) or r(*at))
    found = read(storage)
    assert (found.losses, found.observed_s, found.save_times) == (31, 50.0, (5.0,))
    assert len(sizes) == 33
    assert max(sizes) == 2**18 < storage.size_bytes(segment_name(41))


def test_the_last_steps_on_record_say_what_a_step_takes(storage):
    """Their median, in the newest generation that did any. Its header has the plan."""
    assert last_steps(RunFolder(storage)) is None
    write(storage, 1, *(step(number, 9.0) for number in range(8)))
    write(storage, 2, *(step(number, float(number)) for number in range(1, 31)), commit(31, 2), TOLD)
    write(storage, 3, TOLD)
    header, seconds = last_steps(RunFolder(storage))
    assert (header.generation, seconds) == (2, 20.5)


def test_the_steps_on_record_are_those_of_the_newest_generation_with_any(storage):
    """One that died before its first step leaves all that must be done again to the next one."""
    assert num_recorded(RunFolder(storage), before=1) == 0
    write(storage, 1, *(step(number) for number in range(8)), commit(4), TOLD)
    write(storage, 2, TOLD)
    write(storage, 3, step(4))
    assert [num_recorded(RunFolder(storage), before=number) for number in (1, 2, 3, 4)] == [0, 8, 8, 5]


def test_a_launch_expects_rounds_by_the_last_steps_on_record(storage):
    """Seconds per sample of what one worker computes one after another: four of them in the 2 s of a step."""
    assert earlier_sample_s(RunFolder(storage)) == 0.0
    write(storage, 1, step(0, 2.0))
    assert earlier_sample_s(RunFolder(storage)) == 0.5
