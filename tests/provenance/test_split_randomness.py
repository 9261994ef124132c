"""What differs by random numbers is told apart from what differs by a mistake."""

from types import SimpleNamespace

import pytest

from planner.provenance.compare import Check
from planner.provenance.split_randomness import outcome, randomness_checks, without_excuse


def check(what, passed):
    return Check(what=what, passed=passed, detail="")


def trace(*drawn, **dropout):
    return SimpleNamespace(drawn=frozenset(drawn), dropout_off=dropout)


def with_randomness(checks, equality, *traces):
    return [*checks, *randomness_checks(checks, equality, *traces)]


EQUAL = [check("samples", True), check("losses", True), check("weights", True)]
LOSSES = [check("samples", True), check("losses", False), check("weights", False)]
SAMPLES = [check("samples", False), check("losses", False)]


@pytest.mark.parametrize(
    ("checks", "equality", "drawn", "result"),
    [
        (EQUAL, "balanced", [], "equal"),
        (EQUAL, "balanced", ["torch", "random"], "equal"),
        (LOSSES, "balanced", [], "different"),
        (LOSSES, "balanced", ["torch"], "not compared"),
        (LOSSES, "bitwise", ["torch"], "different"),
        (LOSSES, "balanced", ["random"], "different"),
        (SAMPLES, "balanced", ["torch"], "different"),
    ],
)
def test_only_what_random_numbers_can_change_is_excused(checks, equality, drawn, result):
    """Samples never. Nor anything in `bitwise`, where they do not depend on the split."""
    assert outcome(with_randomness(checks, equality, trace(*drawn), trace())) == result


@pytest.mark.parametrize(("reseeded", "result"), [(EQUAL, "different"), (LOSSES, "not compared")])
def test_numbers_that_change_nothing_excuse_nothing(reseeded, result):
    """`reseeded` compares one history with its own random numbers and with others."""
    checks = with_randomness(LOSSES, "balanced", trace("torch"))
    found = without_excuse(checks, reseeded)
    assert outcome(found) == result
    assert ("other numbers give the same results" in found[-1].detail) == (result == "different")


def test_the_first_modules_with_dropout_are_named():
    """And how many there are besides."""
    (found,) = randomness_checks(EQUAL, "balanced", trace(), trace(a=0.1, b=0.2, c=0.3, d=0.4, e=0.5))
    assert (found.passed, found.detail.rpartition(": ")[2]) == (True, "a 0.1, b 0.2, c 0.3 and 2 more")
