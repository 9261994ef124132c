"""The kinds of a section of the job: planner's own, and those of installed packages (by entry points).

The name of an entry point is the kind, and its value names a spec. So planner knows all kinds without importing a
package. It imports one only when a job names its kind, or when it lists all kinds: in the schema and in the error for
a wrong job. Such lists leave out a package that cannot be used. A job that names its kind, and `planner schema`, raise
its error.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Generic, Protocol, TypeVar, Union

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

from planner.base.plugins import Plugin, installed_by_group
from planner.errors import PlannerError, UserError
from planner.job.section import Section


class KindSpec(Protocol):
    """The facts about one kind."""

    @property
    def config(self) -> type[Section]:
        """The class of its section. Its `kind` is `Literal["NAME"]`."""
        ...

    @property
    def kind(self) -> str:
        """Its name in a job file."""
        ...


Spec = TypeVar("Spec", bound=KindSpec)


@cache
def packages() -> Mapping[str, Mapping[str, Plugin]]:
    """The plugins that installed packages declare, by group and kind. Read once in a process."""
    return installed_by_group()


class KindRegistry(Generic[Spec]):
    """Finds the spec of a kind."""

    def __init__(
        self, *, what: str, group: str, ours: Mapping[str, Spec], spec: type[Spec], unavailable: type[UserError]
    ) -> None:
        """Make a registry.

        Args:
            what: the name of such a section in messages, such as `objective`.
            group: the entry point group of packages with such kinds.
            ours: planner's own specs by kind, in the order in which messages list them.
            spec: the class of the specs.
            unavailable: the error for a kind that cannot be used. It must also be a ValueError, for pydantic.
        """
        self.what, self.group, self.ours = what, group, ours
        self._spec, self._unavailable = spec, unavailable

    def spec_of_kind(self, kind: str) -> Spec:
        """The spec of that name. The class of its error is the registry's `unavailable`.

        Raises:
            UserError: no such kind is installed, or its package cannot be used.
        """
        plugin = self._packages().get(kind)
        if plugin is None and kind in self.ours:
            return self.ours[kind]
        if plugin is None:
            raise self._unavailable(
                f"found {self.what} {kind}. Write one of {', '.join(self.kinds())}, or install the package that has it"
            )
        try:
            return self._loaded(kind, plugin)
        except PlannerError as error:
            raise self._unavailable(str(error)) from error

    def named(self, kind: str, name: str) -> Any:
        """Import the object `module:name` that the spec of a kind names. The class of its error is `unavailable`.

        Raises:
            UserError: it cannot be imported.
        """
        module, _, attribute = name.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except Exception as error:  # a package's code may raise anything
            raise self._unavailable(
                f"{self.what} {kind}: cannot load {name}: {type(error).__name__}: {error}"
            ) from error

    def usable_specs(self) -> Iterator[Spec]:
        """Planner's own specs, then those of the packages that can be used."""
        for kind in self.kinds():
            try:
                yield self.spec_of_kind(kind)
            except self._unavailable:
                if kind in self.ours:
                    yield self.ours[kind]

    def require_all(self) -> None:
        """Check that every kind of every package can be used.

        Raises:
            UserError: a kind cannot be used.
        """
        for kind in self.kinds():
            self.spec_of_kind(kind)

    def kinds(self) -> tuple[str, ...]:
        """The names of all kinds: planner's own, then those of installed packages. Imports none of them."""
        return (*self.ours, *(kind for kind in self._packages() if kind not in self.ours))

    def _packages(self) -> Mapping[str, Plugin]:
        return packages().get(self.group, {})

    def _loaded(self, kind: str, plugin: Plugin) -> Spec:
        """The spec that a package declares for a kind.

        Raises:
            PlannerError: it cannot be imported, is not a spec of that kind, or planner itself has that kind.
        """
        if kind in self.ours:
            raise plugin.error(f"{kind} is {_with_article(self.what)} of planner's own")
        spec = plugin.load()
        if not isinstance(spec, self._spec):
            raise plugin.error(f"it is not {_with_article(self._spec.__name__)} but {type(spec).__name__}")
        if spec.kind != kind:
            raise plugin.error(f"its {self._spec.__name__} is of kind {spec.kind}")
        return spec

    def read(self, value: Any, ours: ValidatorFunctionWrapHandler) -> Any:
        """Validate a section by the class that its kind names. `ours` validates planner's own kinds.

        Raises:
            UserError: the kind's package cannot be used, or its validator raised what pydantic does not expect.
        """
        kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
        if not isinstance(kind, str) or kind not in self._packages():
            return ours(value)
        # Within a union, an error's location names the kind, as it does for planner's own kinds.
        first = next(iter(self.ours.values()))
        section: TypeAdapter[Any] = TypeAdapter(_union((first.config, self.spec_of_kind(kind).config)))
        try:
            return section.validate_python(value)
        except (PlannerError, ValidationError):
            raise
        except Exception as error:  # a package's validator may raise anything
            raise self._unavailable(str(self._packages()[kind].failed(error))) from error


class KindField(Generic[Spec]):
    """Marks a field that holds a section of some kind: pydantic's discriminated union, open to packages."""

    def __init__(self, registry: KindRegistry[Spec]) -> None:
        self._registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the class that `kind` names, serialise by the class of the value."""
        del source
        ours = handler.generate_schema(_union(spec.config for spec in self._registry.ours.values()))
        return core_schema.no_info_wrap_validator_function(
            self._registry.read, ours, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema's choices are planner's own kinds, then those of the packages that can be used."""
        del schema
        choices: TypeAdapter[Any] = TypeAdapter(_union(spec.config for spec in self._registry.usable_specs()))
        return handler(choices.core_schema)


def _union(configs: Iterable[type[Section]]) -> Any:
    return Annotated[Union[tuple(configs)], Field(discriminator="kind")]  # noqa: UP007 made of a tuple


def _with_article(word: str) -> str:
    return f"{'an' if word[0].lower() in 'aeio' else 'a'} {word}"
