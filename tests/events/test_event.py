"""Events are stored as names and facts, and read back as what they were."""

import json
from typing import Literal

import pytest

from planner.events.event import Event, facts_of
from planner.events.kinds import KINDS, event_of


class Inner(Event, name="test-inner"):
    seconds: float


class Outer(Event, name="test-outer"):
    count: int
    why: Literal["a", "b"]
    until_s: float | None
    inner: Inner
    several: tuple[Event, ...]
    names: tuple[str, ...]


@pytest.fixture(autouse=True, scope="module")
def _only_here():
    yield
    del KINDS["test-inner"], KINDS["test-outer"]


WHOLE = Outer(count=3, why="a", until_s=None, inner=Inner(seconds=2.0), several=(Inner(seconds=1.5),), names=("x",))


def test_an_event_is_read_back_from_json():
    """Nested ones, too."""
    assert event_of("test-outer", json.loads(json.dumps(facts_of(WHOLE)))) == WHOLE


def test_a_whole_number_is_read_as_seconds():
    """Other languages write 2.0 as 2."""
    assert event_of("test-inner", {"seconds": 2}) == Inner(seconds=2.0)


@pytest.mark.parametrize(
    ("name", "facts", "text"),
    [
        ("nothing", {}, "no event is named 'nothing'"),
        ("test-inner", {}, "has the facts seconds"),
        ("test-inner", {"seconds": "2"}, "test-inner.seconds is '2'"),
        ("test-inner", {"seconds": True}, "test-inner.seconds is True"),
        ("test-inner", {"seconds": 10**400}, "test-inner.seconds is 1000"),
        ("test-outer", {**facts_of(WHOLE), "why": "c"}, "test-outer.why is 'c'"),
        ("test-outer", {**facts_of(WHOLE), "inner": {"event": "test-outer"}}, "has the facts"),
        ("test-outer", {**facts_of(WHOLE), "names": [1]}, "test-outer.names is 1"),
    ],
)
def test_other_facts_are_refused(name, facts, text):
    """They name the field and the value."""
    with pytest.raises(ValueError, match=text):
        event_of(name, facts)


def test_two_kinds_with_one_name_are_refused():
    """A stored name means one kind."""
    with pytest.raises(ValueError, match="two kinds of event are named test-inner"):
        type("Another", (Event,), {}, name="test-inner")
