"""Events in the ledger."""

from planner.events.training import DataNote, HeldOutNotFinite
from planner.train.journal import Journal

UNPACKED = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_2"


def written(*events):
    """The records of these events."""
    found = []
    journal = object.__new__(Journal)
    journal.record = found.append
    for event in events:
        journal.note(event)
    return found


def test_an_event_is_written_as_its_name_its_facts_and_its_text():
    """Readers use the first two."""
    (record,) = written(HeldOutNotFinite(step=7))
    assert (record.event, record.facts, record.told) == ("held_out_not_finite", {"step": 7}, HeldOutNotFinite(step=7))
    assert record.message == "step 7: the held-out loss is not finite"


def test_facts_have_the_paths_of_the_folder_that_was_submitted():
    """Ray unpacks it elsewhere on every cluster."""
    (record,) = written(DataNote(text=f"{UNPACKED}/rows.jsonl has 2 bad rows"))
    assert record.facts == {"text": "rows.jsonl has 2 bad rows"}
    assert record.message == "data: rows.jsonl has 2 bad rows"
