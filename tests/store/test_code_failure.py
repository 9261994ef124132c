"""The last error of the user's code in a run's folder: kept for people, and in nobody's way."""

from dataclasses import dataclass

import pytest

from planner.errors import StoreError
from planner.store.code_failure import FAILURE_FILE, CodeFailure, keep_failure, read_failure
from planner.store.lease_record import lease_name, this_driver
from planner.store.records import GenerationRecord, seal
from planner.store.survey import _failure, survey


@dataclass
class Header:
    time_s: float


def test_it_is_kept_and_the_next_takes_its_place(storage):
    """One file, however often the code fails."""
    assert read_failure(storage) is None
    for text in ("first", "second"):
        keep_failure(storage, CodeFailure.now("l", text, "Traceback\n"))
    found = read_failure(storage)
    assert (found.launch, found.text, found.traceback) == ("l", "second", "Traceback\n")


def test_it_is_bounded(storage):
    """Also if somebody hands in more."""
    keep_failure(storage, CodeFailure.now("l", "x" * 10**6, "y" * 10**6))
    assert storage.size_bytes(FAILURE_FILE) < 50_000
    assert read_failure(storage).text.startswith("xxx")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"value":{"format":99},"sha256":""}', b"\xff" * 100])
def test_one_that_cannot_be_read_is_none(storage, content):
    """Torn, or of another version."""
    storage.write(FAILURE_FILE, content)
    assert read_failure(storage) is None


def test_a_store_that_refuses_is_no_second_error(storage, monkeypatch):
    """The error itself must reach the driver."""

    def refuse(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(storage, "write", refuse)
    keep_failure(storage, CodeFailure.now("l", "text", ""))


def test_it_is_shown_until_a_generation_begins(storage):
    """Before any generation had a ledger, too."""
    keep_failure(storage, CodeFailure.now("l", "text", ""))
    found = read_failure(storage)
    assert _failure(storage, None, None) == found
    assert _failure(storage, Header(found.time_s - 1), None) == found
    assert _failure(storage, Header(found.time_s + 1), None) is None
    assert GenerationRecord.model_fields.keys() >= {"time_s"}


def test_while_a_run_starts_again_the_error_of_the_launch_before_is_not_shown(storage):
    """The code may be mended. Until its first generation begins, only the lease tells that a launch is newer."""
    keep_failure(storage, CodeFailure.now("before", "text", ""))
    now = this_driver("now", 5.0)
    storage.create(lease_name(1), seal(now))
    assert survey(storage.url).failure is None
    storage.write(lease_name(1), seal(now.model_copy(update={"launch": "before"})))
    assert survey(storage.url).failure == read_failure(storage)
    storage.write(lease_name(1), seal(now.model_copy(update={"held": False})))
    assert survey(storage.url).failure == read_failure(storage)
