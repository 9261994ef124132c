"""All objectives: planner's own, and those of installed packages (the entry points `planner.objectives`).

The name of an entry point is the objective's kind, and its value names an `ObjectiveSpec`. So planner knows all kinds
without importing a package. It imports one only when a job names its kind, or when it lists all objectives: in the
schema, in the error for a wrong job, and for the metrics that a terminal shows. Such lists leave out a package that
cannot be used. A job that names its kind, and `planner schema`, raise its error.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Union

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from planner.base.plugins import Plugin, installed
from planner.errors import ObjectiveUnavailable, PlannerError
from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import OURS
from planner.job.objectives.lm import LmObjective

GROUP = "planner.objectives"
"""the entry point group of packages with objectives"""


def spec_of(objective: Objective) -> ObjectiveSpec:
    """The facts about a job's objective.

    Raises:
        ObjectiveUnavailable: no such objective is installed, or its package cannot be used.
    """
    return spec_of_kind(objective.kind)


@cache
def spec_of_kind(kind: str) -> ObjectiveSpec:
    """The facts about the objective of that name.

    Raises:
        ObjectiveUnavailable: no such objective is installed, or its package cannot be used.
    """
    plugin = _packages().get(kind)
    if plugin is None and kind in OURS:
        return OURS[kind]
    if plugin is None:
        raise ObjectiveUnavailable(
            f"found objective {kind}. Write one of {', '.join(_kinds())}, or install the package that has it"
        )
    try:
        return _loaded(kind, plugin)
    except PlannerError as error:
        raise ObjectiveUnavailable(str(error)) from error


def usable_specs() -> Iterator[ObjectiveSpec]:
    """Planner's own objectives, then those of the packages that can be used."""
    for kind in _kinds():
        try:
            yield spec_of_kind(kind)
        except ObjectiveUnavailable:
            if kind in OURS:
                yield OURS[kind]


def require_all_objectives() -> None:
    """Check that every objective of every package can be used.

    Raises:
        ObjectiveUnavailable: an objective cannot be used.
    """
    for kind in _kinds():
        spec_of_kind(kind)


@cache
def shown_metrics() -> Mapping[str, str]:
    """The metrics that a terminal shows beside the loss, of all usable objectives -> the label of each.

    If two objectives give one metric different labels, the first one's is shown.
    """
    shown: dict[str, str] = {}
    for spec in usable_specs():
        for name, label in spec.shown.items():
            shown.setdefault(name, label)
    return shown


class ObjectiveField:
    """Marks the field of a job that holds an objective's section: pydantic's discriminated union, open to packages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the class that `kind` names, serialise by the class of the value."""
        del source
        ours = handler.generate_schema(_union(spec.config for spec in OURS.values()))
        return core_schema.no_info_wrap_validator_function(
            _read, ours, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema's choices are planner's own objectives, then those of the packages that can be used."""
        del schema
        return handler(TypeAdapter(_union(spec.config for spec in usable_specs())).core_schema)


def _read(value: Any, ours: ValidatorFunctionWrapHandler) -> Any:
    """Validate a section by the class that its kind names."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    if not isinstance(kind, str) or kind not in _packages():
        return ours(value)
    # Within a union, an error's location names the kind, as it does for planner's own objectives.
    section = TypeAdapter(_union((LmObjective, spec_of_kind(kind).config)))
    try:
        return section.validate_python(value)
    except (PlannerError, ValidationError):
        raise
    except Exception as error:  # a package's validator may raise anything
        raise ObjectiveUnavailable(str(_packages()[kind].failed(error))) from error


def _union(configs: Iterable[type[Objective]]) -> Any:
    return Annotated[Union[tuple(configs)], Field(discriminator="kind")]  # noqa: UP007 made of a tuple


@cache
def _packages() -> Mapping[str, Plugin]:
    """The plugins that installed packages declare, by kind."""
    return installed(GROUP)


def _kinds() -> tuple[str, ...]:
    return (*OURS, *(kind for kind in _packages() if kind not in OURS))


def _loaded(kind: str, plugin: Plugin) -> ObjectiveSpec:
    """The spec that a package declares for a kind.

    Raises:
        PlannerError: it cannot be imported, is not a spec of that kind, or planner itself has that kind.
    """
    if kind in OURS:
        raise plugin.error(f"{kind} is an objective of planner's own")
    spec = plugin.load()
    if not isinstance(spec, ObjectiveSpec):
        raise plugin.error(f"it is not an ObjectiveSpec but {type(spec).__name__}")
    if spec.kind != kind:
        raise plugin.error(f"its ObjectiveSpec is of kind {spec.kind}")
    return spec
