"""The base class of a job's sections, which are frozen and strict, and the types of their durations."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from planner.job import duration

STORED_JOB = {"is_stored": True}
"""pydantic's context for a job that a run was made with, which a later version of planner must still read"""


class Section(BaseModel):
    """A section of a job. Frozen. Unknown keys and values of a wrong type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _normalised(value: object, least: int) -> str:
    """A duration in its only written form, so that equal jobs have equal digests."""
    try:
        return str(duration.parse(value, least))
    except ValueError:
        raise PydanticCustomError("duration", "should be a duration such as 100 steps") from None


def _schema(least: int, *constants: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                *({"const": constant, "type": "string"} for constant in constants),
                {"type": "integer", "minimum": least, "maximum": duration.MAX_STEPS},
                {"type": "string", "pattern": duration.PATTERN, "examples": list(duration.SUCH_AS)},
            ]
        }
    )


# `100 steps`, `20000 examples`, `0.5 epochs` or `10%` of the run. A whole number counts steps.
DurationText = Annotated[str, BeforeValidator(lambda value: _normalised(value, 0)), _schema(0)]
Every = Annotated[str, BeforeValidator(lambda value: _normalised(value, 1)), _schema(1)]
AutoOrEvery = Annotated[
    str,
    BeforeValidator(lambda value: value if value == "auto" else _normalised(value, 1)),
    _schema(1, "auto"),
]
