"""Every kind of event can be stored and read back, and has a sentence of its own."""

import json
import types
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message import Message

from planner.events.event import Event, facts_of
from planner.events.kinds import KINDS, event_of
from planner.wording.event_text import text_of

# Tests have kinds of their own.
OURS = {name: kind for name, kind in KINDS.items() if kind.__module__.startswith("planner.")}


def facts(wanted):
    """Values of a field's type."""
    if wanted in VALUES:
        return VALUES[wanted]
    arguments = get_args(wanted)
    if get_origin(wanted) is Literal:
        return st.sampled_from(arguments)
    if get_origin(wanted) is tuple:
        return st.lists(facts(arguments[0]), min_size=1, max_size=3).map(tuple)
    if get_origin(wanted) in {Union, types.UnionType}:
        return st.one_of(map(facts, arguments))
    return events(wanted)


def events(kind):
    """Events of one kind, by the types of its fields."""
    return st.builds(kind, **{name: facts(wanted) for name, wanted in get_type_hints(kind).items() if name != "name"})


VALUES = {
    str: st.text(max_size=9),
    int: st.integers(1, 1000),
    float: st.floats(0, 1e6),
    bool: st.booleans(),
    types.NoneType: st.none(),
    Event: st.builds(Message, text=st.text(max_size=9)),
}


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_kind_survives_the_ledger_and_has_a_sentence_of_its_own(name):
    """With any facts. A new kind needs no line here."""
    kind = OURS[name]

    @given(event=events(kind))
    def check(event):
        assert event_of(name, json.loads(json.dumps(facts_of(event), allow_nan=False))) == event
        assert isinstance(text_of(event), str)

    assert text_of.dispatch(kind) not in {text_of.dispatch(other) for other in {*OURS.values(), Event} - {kind}}
    check()
