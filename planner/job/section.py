"""What all sections of a job have in common: frozen, strict, without unknown keys; and lengths of time in a run."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from planner.job import duration


class Section(BaseModel):
    """A part of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _cadence(value: object, least: int) -> str:
    """In its one way to write it, so that equal jobs have equal digests."""
    try:
        return str(duration.parse(value, least))
    except ValueError:
        raise PydanticCustomError("cadence", "should be a cadence") from None


def _cadence_schema(least: int, *words: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                *({"const": word, "type": "string"} for word in words),
                {"type": "integer", "minimum": least, "maximum": duration.MAX_STEPS},
                {"type": "string", "pattern": duration.PATTERN, "examples": list(duration.SUCH_AS)},
            ]
        }
    )


# `100 steps`, `20000 examples`, `0.5 epochs` or `10%` of the run; a whole number is steps. See `planner.job.lengths`.
Stretch = Annotated[str, BeforeValidator(lambda value: _cadence(value, 0)), _cadence_schema(0)]
Every = Annotated[str, BeforeValidator(lambda value: _cadence(value, 1)), _cadence_schema(1)]
AutoOrEvery = Annotated[
    str,
    BeforeValidator(lambda value: value if value == "auto" else _cadence(value, 1)),
    _cadence_schema(1, "auto"),
]
