"""The format number of everything that planner stores and reads again. planner writes one, and may read older ones.

If you change what is stored under a name, raise its number here. docs/reference/stored-formats.md lists them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from planner.base.text import enumerated

STORED: Mapping[str, int] = MappingProxyType(
    {
        "run.json": 1,
        "jobs": 1,
        "drivers": 1,
        "generations": 1,
        "ledger": 4,
        "manifests": 1,
        "held": 1,
        "status": 1,
        "footprints": 2,
        "failure": 1,
        "caps": 1,
        "reference": 1,
        "samples": 1,
        "tokens": 2,
        "rates": 1,
        "tracking": 1,
        "trl": 1,
    }
)
"""what is stored -> the format that this version of planner writes"""

EARLIER: Mapping[str, tuple[int, ...]] = MappingProxyType({"ledger": (1, 2, 3), "tokens": (1,)})
"""what is stored -> earlier formats that this version of planner reads too, ascending"""


def refusal(found: object, what: str) -> str:
    """The reason why a stored format cannot be read. Empty if it can.

    Args:
        found: the stored format number. None if there is none.
        what: the name in `STORED`.
    """
    reads = (*EARLIER.get(what, ()), STORED[what])
    if type(found) is int and found in reads:  # `True == 1`, but true is not a format number
        return ""
    here = enumerated([str(number) for number in reads])
    if found is None:
        formats = "format" if len(reads) == 1 else "formats"
        return f"written before formats had numbers, and this version of planner reads {formats} {here}"
    return f"written by another version of planner (format {str(found)[:40]}, this one reads {here})"
