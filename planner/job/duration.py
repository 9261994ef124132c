"""Cadences in the units that people bring: `100 steps`, `20000 examples`, `0.5 epochs`, `10%` of the run.

Reading and converting one are pure. `planner.job.lengths` asks for all of a job's.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MAX_STEPS = 2**40
MAX_EXAMPLES = 2**60
MAX_EPOCHS = 2**20

Unit = Literal["steps", "examples", "epochs", "%"]

_WHOLE, _DECIMAL = "(0|[1-9][0-9]*)", r"((0|[1-9][0-9]*)?\.[0-9]+|0|[1-9][0-9]*)"
PATTERN = f"^({_WHOLE} (steps?|examples?( rounded)?)|{_DECIMAL}( epochs?|%))$"
"""of a cadence that is text"""
SUCH_AS = ("150 steps", "20000 examples", "0.5 epochs", "10%")

_TEXT = re.compile(PATTERN)
_UNITS: dict[str, Unit] = {"step": "steps", "example": "examples", "epoch": "epochs", "%": "%"}
_MOST = {"steps": MAX_STEPS, "examples": MAX_EXAMPLES, "epochs": MAX_EPOCHS, "%": 100}
# More digits than these are out of bounds, or say nothing.
_MAX_DIGITS = 40


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A stretch of training: how long a warmup lasts, or how far apart two evaluations are."""

    amount: Fraction
    """made of a decimal"""
    unit: Unit
    rounded: bool = False
    """whether examples that are not whole steps may be made so"""

    def __str__(self) -> str:
        """The one way to write it, which `parse` reads: equal cadences have equal texts."""
        if self.unit == "%":
            return f"{_decimal(self.amount)}%"
        words = f"{_decimal(self.amount)} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"
        return f"{words} rounded" if self.rounded else words


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """What a cadence is converted by."""

    global_batch: int
    num_samples: int
    """of one epoch; 0 where the data has not been opened"""
    total_steps: int
    """of the whole run; 0 where it takes the data to know"""


def parse(written: object, least: int = 0) -> Duration:
    """A cadence as a job file has it; a whole number is steps.

    Args:
        written: what stands there.
        least: 0, or 1 where a cadence of nothing would be none.

    Raises:
        ValueError: it is no cadence, or out of bounds.
    """
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written <= MAX_STEPS:
        written = f"{written} steps"
    if not isinstance(written, str) or len(written) > _MAX_DIGITS or not _TEXT.fullmatch(written):
        raise ValueError("no cadence")
    number, unit, *rounded = written.replace("%", " %").split()
    found = Duration(amount=Fraction(number), unit=_UNITS[unit.removesuffix("s")], rounded=bool(rounded))
    if not (least and not found.amount) and found.amount <= _MOST[found.unit]:
        return found
    raise ValueError("out of bounds")


def is_convertible(cadence: Duration, extent: RunLength) -> bool:
    """Whether it can be converted already."""
    if cadence.unit == "epochs":
        return extent.num_samples > 0
    return cadence.unit != "%" or extent.total_steps > 0


def in_steps(cadence: Duration, extent: RunLength) -> int:
    """The nearest whole number of optimizer steps, half a step upwards; 0 only for a cadence of nothing."""
    assert is_convertible(cadence, extent)
    amount, size = cadence.amount, extent.global_batch
    exact = {
        "steps": amount,
        "examples": amount / size,
        "epochs": amount * extent.num_samples / size,
        "%": amount * extent.total_steps / 100,
    }[cadence.unit]
    return max(int(exact + Fraction(1, 2)), 1 if amount else 0)


def mismatch(cadence: Duration, global_batch: int) -> str:
    """Why examples are no whole steps, and the nearest ones that are; empty if they are, or may be rounded."""
    if cadence.unit != "examples" or cadence.rounded or not cadence.amount % global_batch:
        return ""
    below = int(cadence.amount // global_batch)
    steps = [Duration(amount=Fraction(number), unit="steps") for number in (below, below + 1) if number]
    nearest = " or ".join(f"{in_examples(each, global_batch)} ({each})" for each in steps)
    return f"{cadence} is not a multiple of batch.global {global_batch}: write {nearest}, or {cadence} rounded"


def in_examples(steps: Duration, global_batch: int) -> Duration:
    """What so many steps use."""
    return Duration(amount=steps.amount * global_batch, unit="examples")


def _decimal(amount: Fraction) -> str:
    """A fraction that was made of a decimal, as the shortest decimal."""
    digits = 0
    while amount * 10**digits % 1:
        digits += 1
    number = str(int(amount * 10**digits)).zfill(digits + 1)
    return f"{number[:-digits]}.{number[-digits:]}" if digits else number
