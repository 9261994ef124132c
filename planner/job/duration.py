"""Durations of training, as a job file has them: `100 steps`, `20000 examples`, `0.5 epochs`, `10%` of the run.

Parsing and converting them are pure functions. `planner.job.step_schedule` converts all durations of a job.
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
"""the form of a duration that is text, as a regular expression"""
SUCH_AS = ("150 steps", "20000 examples", "0.5 epochs", "10%")

_TEXT = re.compile(PATTERN)
_UNITS: dict[str, Unit] = {"step": "steps", "example": "examples", "epoch": "epochs", "%": "%"}
_MOST = {"steps": MAX_STEPS, "examples": MAX_EXAMPLES, "epochs": MAX_EPOCHS, "%": 100}
# Characters. A longer number is out of bounds, or more precise than any step.
_MAX_CHARS = 40


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A length of training, such as the warmup or the distance between two evaluations."""

    amount: Fraction
    """made of a decimal number, so that it can be written as one"""
    unit: Unit
    rounded: bool = False
    """whether an amount of examples may be rounded to whole steps"""

    def __str__(self) -> str:
        """The text in its only form: equal durations have equal texts. `parse` reads it."""
        if self.unit == "%":
            return f"{_decimal(self.amount)}%"
        text = f"{_decimal(self.amount)} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"
        return f"{text} rounded" if self.rounded else text


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The numbers of a run that convert a duration to steps."""

    global_batch: int
    """samples per optimizer step"""
    num_samples: int
    """samples per epoch. 0 if the data has not been opened"""
    total_steps: int
    """optimizer steps of the whole run. 0 if only the data can tell"""


def parse(written: object, least: int = 0) -> Duration:
    """Parse a duration of a job file. A whole number counts steps.

    Args:
        written: the value in the job file.
        least: 0, or 1 to refuse a duration of zero.

    Raises:
        ValueError: `written` is not a duration, or is out of bounds.
    """
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written <= MAX_STEPS:
        written = f"{written} steps"
    if not isinstance(written, str) or len(written) > _MAX_CHARS or not _TEXT.fullmatch(written):
        raise ValueError("not a duration")
    number, unit, *rounded = written.replace("%", " %").split()
    found = Duration(amount=Fraction(number), unit=_UNITS[unit.removesuffix("s")], rounded=bool(rounded))
    if not (least and not found.amount) and found.amount <= _MOST[found.unit]:
        return found
    raise ValueError("out of bounds")


def is_convertible(length: Duration, run: RunLength) -> bool:
    """Whether enough is known of the run to convert `length` to steps."""
    if length.unit == "epochs":
        return run.num_samples > 0
    return length.unit != "%" or run.total_steps > 0


def in_steps(length: Duration, run: RunLength) -> int:
    """The nearest whole number of optimizer steps. Half a step rounds up. 0 only if `length` is zero."""
    assert is_convertible(length, run)
    amount, size = length.amount, run.global_batch
    exact = {
        "steps": amount,
        "examples": amount / size,
        "epochs": amount * run.num_samples / size,
        "%": amount * run.total_steps / 100,
    }[length.unit]
    return max(int(exact + Fraction(1, 2)), 1 if amount else 0)


def mismatch(length: Duration, global_batch: int) -> str:
    """The error if an amount of examples is not a whole number of steps. Empty if it is, or may be rounded."""
    if length.unit != "examples" or length.rounded or not length.amount % global_batch:
        return ""
    below = int(length.amount // global_batch)
    steps = [Duration(amount=Fraction(number), unit="steps") for number in (below, below + 1) if number]
    nearest = " or ".join(f"{in_examples(each, global_batch)} ({each})" for each in steps)
    return f"{length} is not a multiple of batch.global {global_batch}. Write {nearest}, or {length} rounded"


def in_examples(steps: Duration, global_batch: int) -> Duration:
    """The examples that a duration in steps uses."""
    return Duration(amount=steps.amount * global_batch, unit="examples")


def _decimal(amount: Fraction) -> str:
    """The shortest decimal of a fraction that was made of a decimal."""
    digits = 0
    while amount * 10**digits % 1:
        digits += 1
    number = str(int(amount * 10**digits)).zfill(digits + 1)
    return f"{number[:-digits]}.{number[-digits:]}" if digits else number
