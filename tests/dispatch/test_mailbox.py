"""What a worker knows of a stop: whether it may stay in memory, in any order of requests."""

import threading

import pytest

from planner.dispatch import mailbox


@pytest.fixture(autouse=True)
def empty():
    mailbox.reset()
    yield
    mailbox.reset()


def test_without_a_stop_a_worker_may_hold():
    """Another worker may know of a stop in memory already. This one must not speak against it."""
    assert mailbox.may_hold()
    assert not mailbox.stop_requested()


@pytest.mark.parametrize(
    ("requests", "may_hold"),
    [([True], True), ([False], False), ([True, False], False), ([False, True], False), ([True, True], True)],
)
def test_a_durable_request_wins(requests, may_hold):
    """In any order: Ray may deliver the later one first."""
    for in_memory in requests:
        mailbox.request_stop(in_memory)
    assert mailbox.stop_requested()
    assert mailbox.may_hold() == may_hold


def test_a_stop_is_durable_unless_it_says_otherwise():
    """A request that says nothing is the safe one."""
    mailbox.request_stop()
    assert mailbox.stop_requested()
    assert not mailbox.may_hold()


def test_the_next_generation_begins_without_requests():
    mailbox.request_stop(False, True)
    mailbox.reset()
    assert mailbox.may_hold()
    assert not mailbox.stop_requested()
    assert not mailbox.cut_requested()


@pytest.mark.parametrize(
    ("requests", "cut"), [([False], False), ([True], True), ([False, True], True), ([True, False], True)]
)
def test_a_request_to_cut_wins(requests, cut):
    """In any order."""
    for each in requests:
        mailbox.request_stop(True, each)
    assert mailbox.stop_requested()
    assert mailbox.may_hold()
    assert mailbox.cut_requested() == cut


def test_a_worker_that_sees_a_cut_sees_the_stop(monkeypatch):
    """Training reads it while Ray's thread writes."""
    seen = []

    class Cut(threading.Event):
        def set(self):
            seen.append(mailbox.stop_requested())
            super().set()

    monkeypatch.setattr(mailbox, "_cut", Cut())
    mailbox.request_stop(True, True)
    assert seen == [True]


def test_a_worker_that_sees_a_durable_stop_knows_that_it_is_durable(monkeypatch):
    """Ray's thread writes while training reads."""
    seen = []

    class Stop(threading.Event):
        def set(self):
            seen.append(mailbox.may_hold())
            super().set()

    monkeypatch.setattr(mailbox, "_stop", Stop())
    mailbox.request_stop(True)
    mailbox.request_stop()
    assert seen == [True, False]
