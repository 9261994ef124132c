"""A stop that finds its step copied already: whether the copy counts, once it is published."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from events import EVENT_S

from planner.train.copies import Copies, Held, Owner

HELD = partial(Held, place=0, shards={}, pieces=(), wait=lambda: None, is_kept=True)


@pytest.fixture
def copies(monkeypatch):
    """`copies({step: whether it can be sealed})`. Each is published when `copies.go` is set."""
    go = threading.Event()

    def make(seals):
        def publish(_copies, _client, held, _facts, _moved):
            assert go.wait(EVENT_S)
            return seals[held.step]

        monkeypatch.setattr(Copies, "_publish", publish)
        made = Copies(
            device=torch.device("cpu"),
            owner=Owner(run_id="r", generation=1, rank=0, world_size=1),
            pieces=tuple,
            links=SimpleNamespace(publisher=object()),
        )
        made.go = go
        return made

    yield make
    go.set()


def test_a_copy_that_is_being_published_is_waited_for(copies):
    found = copies({3: True})
    found.publish(HELD(step=3), {})
    threading.Timer(0.05, found.go.set).start()
    assert found.is_published(3)


def test_so_is_one_that_waits_for_another(copies):
    """Afterwards, the older one is not what a stop may stay with."""
    found = copies({3: True, 4: True})
    found.publish(HELD(step=3), {})
    found.publish(HELD(step=4, place=1), {})
    found.go.set()
    assert found.is_published(4)
    assert not found.is_published(3)


def test_one_that_cannot_be_sealed_does_not_count(copies):
    found = copies({3: False})
    found.publish(HELD(step=3), {})
    found.go.set()
    assert not found.is_published(3)


def test_one_whose_publishing_fails_does_not_count(copies):
    found = copies({})
    found.publish(HELD(step=3), {})
    found.go.set()
    assert not found.is_published(3)


def test_nothing_is_waited_for_without_a_keeper(copies):
    """Also if the copy is kept by nobody."""
    found = copies({3: True})
    found.publish(HELD(step=3, is_kept=False), {})
    assert not found.is_published(3)
