"""Which commits workers are writing now, by what they say (chaos_loop.py)."""

import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storm import Storm

# A group may be starting, which takes tens of seconds on a busy machine.
_NO_WRITE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Write:
    """A worker's file of a commit that is being written."""

    pid: int
    commit: str


def writes(storm: "Storm") -> list[Write]:
    """What living workers are writing now, by what they say (chaos_loop.py)."""
    found = []
    for marker in storm.writing.iterdir():
        with contextlib.suppress(OSError):  # it is done
            if marker.name.isdigit() and Path(f"/proc/{marker.name}").exists():
                found.append(Write(pid=int(marker.name), commit=Path(marker.read_text()).parent.name))
    return found


def next_write(storm: "Storm", dice: random.Random) -> Write | None:
    """The next write that is under way. None if there is none for a while."""
    until_s = time.monotonic() + _NO_WRITE_S
    while not (found := writes(storm)) and time.monotonic() < until_s:
        storm.pause(0.05)
    return dice.choice(found) if found else None
