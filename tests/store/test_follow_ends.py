"""Following the newest generations of a ledger, or the ends of its segments."""

from test_earlier import step, write

from planner.store.follow import Follower
from planner.store.ledger import segment_name
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder


def kinds(records):
    """`(generation)` of a header, and the numbers of steps."""
    return [
        (record.generation,) if isinstance(record, GenerationRecord) else record.step
        for record in records
        if isinstance(record, GenerationRecord | StepRecord)
    ]


def history(storage, numbers, num_steps):
    for number in numbers:
        RunFolder(storage).claim_generation({"launch": "l"})
        write(storage, number, *map(step, range(num_steps)))


def test_the_newest_two_generations_are_read_in_full(storage):
    """And then only what is new."""
    history(storage, (1, 2, 3), 3)
    follower = Follower(RunFolder(storage))
    assert kinds(follower.new_records()) == [(2,), 0, 1, 2, (3,), 0, 1, 2]
    assert follower.new_records() == []
    history(storage, (4,), 1)
    assert kinds(follower.new_records()) == [(4,), 0]


def test_of_a_long_run_the_ends_are_read(storage):
    """Of every generation its header and its last steps; what follows is read in full."""
    history(storage, (1, 2, 3), 200)
    follower = Follower(RunFolder(storage), tail_bytes=3000)
    found = kinds(follower.new_records())
    headers = [each for each in found if isinstance(each, tuple)]
    assert headers == [(1,), (2,), (3,)]
    assert found[0] == (1,)
    assert found[-1] == 199
    assert 3 < found.count(199) + len(found) < 60
    history(storage, (4,), 5)
    assert kinds(follower.new_records()) == [(4,), 0, 1, 2, 3, 4]


def test_a_segment_that_is_not_longer_than_the_ends_is_read_once(storage):
    history(storage, (1,), 3)
    follower = Follower(RunFolder(storage), tail_bytes=storage.size_bytes(segment_name(1)))
    assert kinds(follower.new_records()) == [(1,), 0, 1, 2]
    assert follower.new_records() == []
