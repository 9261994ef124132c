"""Notes in the ledger."""

from planner.train.journal import Journal


def test_a_note_keeps_the_seconds_of_a_wait_for_room():
    """`planner.provenance.run_times` counts them as waiting, and not as a pause."""
    written = []
    journal = object.__new__(Journal)
    journal._write = written.append
    journal.note("plain")
    journal.note("no group could start", 40.0)
    assert [(record.message, record.waited_s) for record in written] == [("plain", 0.0), ("no group could start", 40.0)]
