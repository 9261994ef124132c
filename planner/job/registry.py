"""The objectives there are: planner's own, and those of installed packages (the entry points `planner.objectives`).

The name of an entry point is the objective's kind, and its value names an `ObjectiveSpec`. So planner knows all kinds
without importing a package. It imports one only when a job names its kind, or when it lists all objectives: in the
schema, in the error of a wrong job, and for the metrics that a terminal shows. A package that cannot be used is left
out of such lists. Its error is raised where a job names its kind, and by `planner schema`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidatorFunctionWrapHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from planner.errors import ObjectiveError
from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import OURS
from planner.job.objectives.lm import LmObjective

GROUP = "planner.objectives"
"""the entry points of packages with objectives"""


def spec_of(objective: Objective) -> ObjectiveSpec:
    """The facts about a job's objective.

    Raises:
        ObjectiveError: no such objective is installed, or its package cannot be used.
    """
    return spec_of_kind(objective.kind)


@cache
def spec_of_kind(kind: str) -> ObjectiveSpec:
    """The facts about the objective of that name.

    Raises:
        ObjectiveError: no such objective is installed, or its package cannot be used.
    """
    entries = _entries().get(kind, ())
    if kind in OURS and not entries:
        return OURS[kind]
    if not entries:
        raise ObjectiveError(
            f"found objective {kind}; write one of {', '.join(_kinds())}, or install the package that has it"
        )
    packages = " and ".join(sorted(map(_package, entries)))
    if kind in OURS or len(entries) > 1:
        owners = f"planner and {packages}" if kind in OURS else packages
        raise ObjectiveError(f"objective {kind} is in {owners}; uninstall {packages}, or all but one of them")
    return _loaded(entries[0])


def usable_specs() -> Iterator[ObjectiveSpec]:
    """Planner's own objectives, then those of the packages that can be used."""
    for kind in _kinds():
        try:
            yield spec_of_kind(kind)
        except ObjectiveError:
            if kind in OURS:
                yield OURS[kind]


def require_all() -> None:
    """Check that every objective of every package can be used.

    Raises:
        ObjectiveError: one cannot.
    """
    for kind in _kinds():
        spec_of_kind(kind)


@cache
def shown_metrics() -> Mapping[str, str]:
    """The metrics that a terminal shows beside the loss, of all objectives that can be used -> the word for each.

    Two objectives should give a metric of one name one word. Otherwise the first one's is shown.
    """
    shown: dict[str, str] = {}
    for spec in usable_specs():
        for name, word in spec.shown.items():
            shown.setdefault(name, word)
    return shown


class ByKind:
    """Marks the field of a job that holds an objective's section: pydantic's discriminated union, open to packages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the class of the kind. Serialise by the class of the value."""
        del source
        ours = handler.generate_schema(_union(spec.config for spec in OURS.values()))
        return core_schema.no_info_wrap_validator_function(
            _read, ours, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The choices are planner's own objectives, then those of the packages that can be used."""
        del schema
        return handler(TypeAdapter(_union(spec.config for spec in usable_specs())).core_schema)


def _read(value: Any, ours: ValidatorFunctionWrapHandler) -> Any:
    """The section, of the class that its kind names."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    if not isinstance(kind, str) or kind not in _entries():
        return ours(value)
    # Within a union, an error's location names the kind, as it does for planner's own.
    return TypeAdapter(_union((LmObjective, spec_of_kind(kind).config))).validate_python(value)


def _union(configs: Iterable[type[Objective]]) -> Any:
    return Annotated[Union[tuple(configs)], Field(discriminator="kind")]  # noqa: UP007 made of a tuple


@cache
def _entries() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Kind -> the entry points of that name; two packages may have chosen the same one."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _kinds() -> tuple[str, ...]:
    return (*OURS, *sorted(set(_entries()) - set(OURS)))


def _loaded(entry: EntryPoint) -> ObjectiveSpec:
    """What an entry point names.

    Raises:
        ObjectiveError: it cannot be imported, or is no spec of that kind.
    """
    where = f"objective {entry.name} of package {_package(entry)} ({GROUP}: {entry.value})"
    try:
        spec = entry.load()
    except Exception as error:  # whatever a package's code raises
        raise ObjectiveError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}; repair or uninstall the package"
        ) from error
    if not isinstance(spec, ObjectiveSpec):
        raise ObjectiveError(f"{where} is no ObjectiveSpec but {type(spec).__name__}; name one there")
    if spec.kind != entry.name:
        raise ObjectiveError(f"{where} is an ObjectiveSpec of kind {spec.kind}; give the entry point that name")
    return spec


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module
