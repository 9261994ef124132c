"""Lowered caps in a run's folder, in the key-value store and in headers."""

from dataclasses import replace

import pytest

from planner.errors import StoreError
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps
from planner.store.lowered_caps import CAPS_FILE, caps_of_text, caps_to_text, keep_caps, read_caps
from planner.store.records import LoweredCapRecord


def caps(max_tokens=None):
    was, now = (Caps(max_micro=micro, max_tokens=max_tokens and max_tokens * micro) for micro in (8, 4))
    return LoweredCaps(of=was, lowered=(LoweredCap(device="CPU", place="forward", was=was, now=now),))


@pytest.mark.parametrize("found", [caps(), caps(100), LoweredCaps(of=Caps(max_micro=1))])
def test_they_are_read_as_they_were_kept(storage, found):
    """The newest take the place of those before."""
    assert read_caps(storage) is None
    keep_caps(storage, LoweredCaps(of=Caps(max_micro=3)))
    keep_caps(storage, found)
    assert read_caps(storage) == found
    assert [LoweredCapRecord.of(each).value for each in found.lowered] == list(found.lowered)


def test_a_text_has_them_or_none():
    """For the cluster's key-value store, where an empty text is no value."""
    assert caps_of_text(caps_to_text(None)) is None
    assert caps_of_text(caps_to_text(caps(100))) == caps(100)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"value":{"format":99},"sha256":""}', b"\xff" * 100])
def test_those_that_cannot_be_read_are_an_error(storage, content):
    """Torn, or of another version. A launch then begins with the job's."""
    storage.write(CAPS_FILE, content)
    with pytest.raises(StoreError):
        read_caps(storage)


WRONG = {
    "no samples": {"now": Caps(max_micro=0)},
    "more than before": {"now": Caps(max_micro=8)},
    "a cap that was not in force": {"was": Caps(max_micro=16)},
    "a cap on tokens of a job without one": {"now": Caps(max_micro=4, max_tokens=10)},
}


@pytest.mark.parametrize("what", WRONG)
def test_lowerings_that_no_run_makes_are_an_error(storage, what):
    """Their digest agrees. Workers could make no plan of them, or one that audits refuse."""
    kept = caps()
    keep_caps(storage, LoweredCaps(of=kept.of, lowered=(replace(kept.lowered[0], **WRONG[what]),)))
    with pytest.raises(StoreError, match=f"{CAPS_FILE}: a cap was lowered for CPU from"):
        read_caps(storage)
