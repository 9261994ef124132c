"""The format number of everything that planner stores and reads again. Any other number is refused.

If you change what is stored under a name, raise its number here. docs/reference/stored-formats.md lists them.
"""

from collections.abc import Mapping
from types import MappingProxyType

STORED: Mapping[str, int] = MappingProxyType(
    {
        "run.json": 1,
        "jobs": 1,
        "drivers": 1,
        "generations": 1,
        "ledger": 2,
        "manifests": 1,
        "held": 1,
        "status": 1,
        "failure": 1,
        "reference": 1,
        "samples": 1,
        "tokens": 1,
        "tracking": 1,
    }
)
"""what is stored -> the format that this version of planner writes, and the only one that it reads"""


def refusal(found: object, reads: int) -> str:
    """The reason why a stored format cannot be read. Empty if it can.

    Args:
        found: the stored format number. None if there is none.
        reads: the format number that this version reads.
    """
    if type(found) is int and found == reads:  # `True == 1`, but true is not a format number
        return ""
    if found is None:
        return f"written before formats had numbers, and this version of planner reads format {reads}"
    return f"written by another version of planner (format {str(found)[:40]}, this one reads {reads})"
