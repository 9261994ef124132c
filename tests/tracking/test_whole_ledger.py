"""All records of a run, read in pieces while it grows: each once, in their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import Run, two_losses

from planner.errors import NewerFormat
from planner.store.follow import WholeLedger
from planner.store.ledger import segment_name
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder


def steps(found):
    return [(generation, record.step) for generation, record in found if isinstance(record, StepRecord)]


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, 2**20])
def test_every_record_comes_once(tmp_path, piece_bytes):
    """Also where a line is longer than a piece."""
    ledger = WholeLedger(RunFolder(two_losses(tmp_path / "run").storage), piece_bytes)
    found = list(ledger.new_records())
    assert steps(found) == [
        *((1, step) for step in range(6)),
        *((2, step) for step in range(4, 10)),
        *((3, step) for step in range(8, 16)),
    ]
    assert [generation for generation, record in found if isinstance(record, GenerationRecord)] == [1, 2, 3]
    assert list(ledger.new_records()) == []


def test_a_run_that_grows_is_read_on(tmp_path):
    """Also the last records of a generation that another one has replaced meanwhile. What it writes later is not."""
    run = Run(tmp_path / "run").begin(0).steps(2)
    ledger = WholeLedger(RunFolder(run.storage))
    assert steps(ledger.new_records()) == [(1, 0), (1, 1)]
    run.steps(1)
    run.begin(2).steps(1)
    assert steps(ledger.new_records()) == [(1, 2), (2, 2)]
    run.storage.append(segment_name(1), run.storage.read(segment_name(1)))
    run.steps(1)
    assert steps(ledger.new_records()) == [(2, 3)]


@given(st.integers(1, 30), st.integers(1, 400))
def test_a_reader_that_stops_in_between_goes_on_there(tmp_path_factory, stop, piece_bytes):
    """It gets no record twice and misses none."""
    run = two_losses(tmp_path_factory.mktemp("any") / "run")
    ledger, found = WholeLedger(RunFolder(run.storage), piece_bytes), []
    for each in ledger.new_records():
        found.append(each)
        if len(found) == stop:
            break
    found += ledger.new_records()
    assert found == list(WholeLedger(RunFolder(run.storage)).new_records())


def test_a_torn_line_waits_for_its_end(tmp_path):
    """A writer may be in the middle of it."""
    run = Run(tmp_path / "run").begin(0).steps(1)
    name = segment_name(1)
    whole = run.storage.read(name)
    run.storage.append(name, whole[-300:-1])
    ledger = WholeLedger(RunFolder(run.storage))
    assert steps(ledger.new_records()) == [(1, 0)]
    assert steps(ledger.new_records()) == []


def test_another_format_is_refused(tmp_path):
    """Its records may mean something else."""
    run = Run(tmp_path / "run").begin(0).steps(1)
    name = segment_name(1)
    run.storage.write(name, run.storage.read(name).replace(b'"format":4', b'"format":5'))
    with pytest.raises(NewerFormat, match="format 5"):
        list(WholeLedger(RunFolder(run.storage)).new_records())
