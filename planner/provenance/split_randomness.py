"""What of two histories depends on the split over workers by random numbers, and what on an error.

planner seeds torch's generator before every micro-batch. In `balanced` the micro-batches depend on the world size, and
so do the random numbers. So `planner verify` trains both histories without dropout, and notices other draws.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from planner.provenance.compare import Check, Trace

Outcome = Literal["equal", "different", "not compared"]

_NAMED = 3
"""how many modules the text names"""
_DRAWN = "random numbers"
_DRAWS = "the steps draw numbers from torch's generator besides dropout, and these depend on the split over workers"
# What random numbers change. They change neither samples nor learning rates.
_DEPENDENT: Final = frozenset({"losses", "held-out losses", "weights", _DRAWN})
_UNSEEDED: Final = {"random": "Python's random", "numpy": "numpy.random"}


def outcome(checks: Sequence[Check]) -> Outcome:
    """`not compared` if all that differs depends on random numbers, which depend on the split over workers."""
    differing = {check.what for check in checks if not check.passed}
    if not differing:
        return "equal"
    return "not compared" if _DRAWN in differing and differing <= _DEPENDENT else "different"


def without_excuse(checks: Sequence[Check], reseeded: Sequence[Check]) -> list[Check]:
    """The checks, in which random numbers excuse nothing if the same history with other numbers gave the same results.

    Args:
        checks: of two histories, with an `outcome` of `not compared`.
        reseeded: losses and weights of one history, computed with its random numbers and with others.
    """
    if not all(check.passed for check in reseeded):
        return list(checks)
    harmless = Check(what=_DRAWN, passed=True, detail=f"{_DRAWS}. But other numbers give the same results")
    return [harmless if check.what == _DRAWN else check for check in checks]


def randomness_checks(checks: Sequence[Check], equality: str, *traces: Trace) -> list[Check]:
    """What is to be said about random numbers in the steps of both histories, given the other checks."""
    drawn = {name for trace in traces for name in trace.drawn}
    dropout = {name: p for trace in traces for name, p in trace.dropout_off.items()}
    differs = not all(check.passed for check in checks)
    found = [_dropout_check(dropout)] if dropout else []
    if "torch" in drawn and equality != "bitwise":
        found.append(_drawn_check(differs=differs))
    if differs and (unseeded := [text for name, text in _UNSEEDED.items() if name in drawn]):
        detail = f"the steps use {' and '.join(unseeded)}, and planner seeds only torch's generator. Draw from torch"
        found.append(Check(what="unseeded numbers", passed=False, detail=detail))
    return found


def _dropout_check(dropout: Mapping[str, float]) -> Check:
    first = ", ".join(f"{name} {p:g}" for name, p in list(dropout.items())[:_NAMED])
    others = f" and {len(dropout) - _NAMED} more" if len(dropout) > _NAMED else ""
    detail = f"off in both runs, because its masks depend on the split over workers: {first}{others}"
    return Check(what="dropout", passed=True, detail=detail)


def _drawn_check(*, differs: bool) -> Check:
    agrees = "" if differs else ". The results agree all the same"
    return Check(what=_DRAWN, passed=not differs, detail=f"{_DRAWS}{agrees}")
