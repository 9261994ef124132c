"""What headers and manifests have in their facts about the data of a run.

`sets` lists the sets of the mixture to train on. `evaluation` describes a data set of its own for evaluation.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from planner.store.records import Count, Digest, StoredModel

SETS, EVALUATION = "sets", "evaluation"
_Fact = TypeVar("_Fact")


class StoredSet(StoredModel):
    """One set of a mixture."""

    name: str
    """path, configuration and split"""
    rows: Count
    """that it has in the mixture"""
    evaluated: Count
    """how many of them are evaluated and not trained on"""
    fingerprint: Digest


class StoredEvaluation(StoredModel):
    """A data set of its own for evaluation."""

    samples: Count
    """how many of its rows are evaluated"""
    rows: Count
    fingerprint: Digest
    """over the samples that are evaluated"""
    sets: tuple[StoredSet, ...] = Field(strict=False)
    """those of a mixture. Empty for a single data set"""


_SETS: TypeAdapter[tuple[StoredSet, ...]] = TypeAdapter(Annotated[tuple[StoredSet, ...], Field(strict=False)])
_EVALUATION: TypeAdapter[StoredEvaluation] = TypeAdapter(StoredEvaluation)


def facts_about(sets: Sequence[StoredSet], evaluation: StoredEvaluation | None) -> dict[str, Any]:
    """The facts as JSON values. A fact that there is not has no key."""
    facts = {SETS: [each.model_dump(mode="json") for each in sets]} if sets else {}
    return facts | ({EVALUATION: evaluation.model_dump(mode="json")} if evaluation else {})


def sets_in(facts: Mapping[str, Any]) -> tuple[StoredSet, ...]:
    """The sets of the mixture to train on. Empty if there are none, or if they cannot be read."""
    return _read(_SETS, facts.get(SETS)) or ()


def evaluation_in(facts: Mapping[str, Any]) -> StoredEvaluation | None:
    """The data set of its own for evaluation. None if there is none, or if it cannot be read."""
    return _read(_EVALUATION, facts.get(EVALUATION))


def _read(form: TypeAdapter[_Fact], value: Any) -> _Fact | None:
    """A stored fact, or None. Another version of planner may have written another form."""
    try:
        return form.validate_python(value)
    except ValidationError:
        return None
