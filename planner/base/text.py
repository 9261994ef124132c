"""Small texts that many messages contain: numbers with units, counted things, paths, the last line of an error."""

import math
import re
from collections.abc import Sequence

_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60.0, 3600.0, 86400.0, 365.25 * 86400.0
# A shorter estimate says no more than that it is short.
_SHORT_S = 0.1
# Ray unpacks a job's working directory into a folder of its session, which is gone when the cluster is. It looks like
# /tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_2
_FOLDER = "/runtime_resources/working_dir_files/"
# A path begins after a space, a quote, a bracket or a sign. In a URL two slashes come first, and it is left alone.
_UNPACKED = re.compile(r"(?<![^\s'\"(=:\[])/(?!/)[^\s'\"]*?" + _FOLDER + r"[^\s'\"/:,;)]+(/(?=[^\s'\"]))?")


def duration(seconds: float) -> str:
    """A duration as text, with two digits or all before the point: `0.35 s`, `25 s`, `40 min`, `2.8 h`, `12 days`."""
    if math.isinf(seconds):
        return "for ever"
    if seconds < 2 * _MINUTE_S:
        return f"{_two_digits(seconds)} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{_two_digits(seconds / _HOUR_S)} h"
    if seconds < 2 * _YEAR_S:
        return f"{_two_digits(seconds / _DAY_S)} days"
    return f"{_two_digits(seconds / _YEAR_S)} years"


def about(seconds: float) -> str:
    """An estimate as text: `about 12 s`, or `less than 0.1 s`."""
    return f"about {duration(seconds)}" if seconds >= _SHORT_S else f"less than {duration(_SHORT_S)}"


def _two_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.5 else f"{value:.2g}"


def counted(number: int, thing: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def enumerated(names: Sequence[str], last: str = "and") -> str:
    """`a, b and c`, or with another word before the last name."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def last_line(text: str, otherwise: str = "no reason given") -> str:
    """The last line that is not empty, up to 300 characters. A traceback's last line names the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else otherwise


def as_submitted(text: str) -> str:
    """The text with paths in a job's unpacked folder made relative to it, as the user wrote them.

    Other texts are unchanged.
    """
    return _UNPACKED.sub(lambda found: "" if found[1] else ".", text)


def how_to_install(extra: str) -> str:
    """The command that installs an extra of planner's `pyproject.toml`, which only some jobs need, for a message.

    It names a checkout or a wheel: planner's distribution, exact-batch-planner, is not on PyPI yet, and `planner` on
    PyPI is another package.
    """
    return f"pip install '.[{extra}]' in planner's checkout, or pip install 'PATH_OF_ITS_WHEEL[{extra}]'"
