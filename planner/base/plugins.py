"""Plugins: what other installed packages add to planner by the entry points of a group, such as `planner.recipes`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from types import UnionType
from typing import Any, ParamSpec, TypeVar

from planner.base.text import last_line
from planner.errors import PlannerError

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A name that a package declares. Nothing is imported before `load`, so a broken package affects only its users."""

    entries: tuple[EntryPoint, ...]
    """one of each package that declares the name. More than one is an error"""

    def load(self) -> Any:
        """The object that the entry point names.

        Raises:
            PlannerError: the object cannot be imported, or several packages declare its name. The message names them.
        """
        if len(self.entries) > 1:
            raise self.error("several packages declare this name")
        try:
            return self.entries[0].load()
        except (Exception, SystemExit) as error:  # a package's module may raise anything, and may exit
            raise self.failed(error) from error

    def guarded(self, function: Callable[_Given, _Made], makes: type | UnionType = object) -> Callable[_Given, _Made]:
        """Wrap a function of the package, so that it raises only `PlannerError` and returns only a `makes`.

        A `PlannerError` of the function passes unchanged. Any other error becomes one that names the package.
        """

        @wraps(function)
        def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
            try:
                made = function(*args, **kwargs)
            except PlannerError:
                raise
            except (Exception, SystemExit) as error:
                raise self.failed(error) from error
            if not isinstance(made, makes):
                name = getattr(function, "__name__", "its function")
                raise self.error(f"{name} returned {type(made).__name__}")
            return made

        return call

    def failed(self, error: BaseException) -> PlannerError:
        """The error for an exception that the package's code raised."""
        return self.error(f"{type(error).__name__}: {last_line(str(error))}")

    def error(self, why: str) -> PlannerError:
        """The error that this plugin cannot be used, with the packages' names and versions, and what to do."""
        packages = " and ".join(sorted(f"{its.dist.name} {its.dist.version}" for its in self.entries if its.dist))
        name = f"{self.entries[0].group}: {self.entries[0].name} of {packages}"
        return PlannerError(f"{name} cannot be used ({why}). Repair or uninstall the package")


def installed(group: str) -> dict[str, Plugin]:
    """The plugins that installed packages declare in a group, by name, sorted. Imports none of them."""
    return _by_name(entry_points(group=group))


def installed_by_group() -> dict[str, dict[str, Plugin]]:
    """As `installed`, for each group whose name begins with `planner.`. It reads all packages once, which takes ms."""
    found = entry_points()
    return {group: _by_name(found.select(group=group)) for group in found.groups if group.startswith("planner.")}


def _by_name(found: EntryPoints) -> dict[str, Plugin]:
    return {name: Plugin(entries=tuple(found.select(name=name))) for name in sorted(found.names)}
