"""Reading a ledger while it is written."""

import pytest

from planner.store.follow import Follower, WholeLedger
from planner.store.ledger import segment_name
from planner.store.records import EventRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


@pytest.fixture
def run(tmp_path):
    return RunFolder(Storage(str(tmp_path)))


def write(run, generation, *messages, end="\n"):
    """Events at the end of a generation's segment."""
    lines = [
        f'{{"head":"{"0" * 64}","record":{EventRecord(message=text, time_s=1.0).model_dump_json()}}}'
        for text in messages
    ]
    run.storage.write(f"generations/{generation:06d}.json", b"{}")
    run.storage.append(segment_name(generation), ("\n".join(lines) + end).encode())


def all_of(follower):
    """The messages of all records, until there are no more."""
    found = []
    while records := list(follower.new_records()):
        found += [record.message for _, record in records]
    return found


@pytest.mark.parametrize("most_bytes", [10, 200, 2**20])
def test_a_history_is_read_from_its_beginning_in_parts(run, most_bytes):
    """All generations, in order, whatever the size of a part; then what is new."""
    for generation in range(1, 5):
        write(run, generation, *(f"{generation}-{number}" for number in range(7)))
    follower = WholeLedger(run, piece_bytes=most_bytes)
    assert all_of(follower) == [f"{generation}-{number}" for generation in range(1, 5) for number in range(7)]
    write(run, 4, "late")
    write(run, 5, "new")
    assert all_of(follower) == ["late", "new"]
    assert all_of(follower) == []


def test_a_part_of_a_long_ledger_is_not_all_of_it(run, monkeypatch):
    """So that the records of a long run are never all in memory."""
    write(run, 1, *("a" * 50 for _ in range(100)))
    read_part, asked = run.storage.read_part, []
    monkeypatch.setattr(run.storage, "read_part", lambda *part: asked.append(part) or read_part(*part))
    next(WholeLedger(run, piece_bytes=1000).new_records())
    assert asked == [(segment_name(1), 0, 1000)]


def test_a_torn_line_waits_for_its_end(run):
    """A driver's view has whole records only."""
    write(run, 1, "whole", "torn", end="")
    follower = WholeLedger(run)
    assert all_of(follower) == ["whole"]
    run.storage.append(segment_name(1), b"\n")
    assert all_of(follower) == ["torn"]


def test_a_finished_generation_is_not_asked_again(run, monkeypatch):
    """A run may have hundreds, and each look would ask for each."""
    for generation in range(1, 6):
        write(run, generation, "x")
    follower = WholeLedger(run)
    assert len(all_of(follower)) == 5
    asked = []
    monkeypatch.setattr(run.storage, "read_part", lambda name, *_: asked.append(name) or b"")
    assert list(follower.new_records()) == []
    assert asked == [segment_name(5)]


def test_the_terminals_follower_begins_with_the_newest_two(run):
    """Or with nothing that is there already."""
    for generation in range(1, 4):
        write(run, generation, str(generation))
    assert [record.message for record in Follower(run).new_records()] == ["2", "3"]
    late = Follower(run, from_now=True)
    write(run, 4, "4")
    assert [record.message for record in late.new_records()] == ["4"]
