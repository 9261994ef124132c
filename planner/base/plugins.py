"""What other installed packages add to planner: the entry points of a group, such as `planner.recipes`."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from planner.base.text import last_line
from planner.errors import PlannerError


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A name that a package declares. Nothing is imported before `load`: a broken package harms only its users."""

    entries: tuple[EntryPoint, ...]
    """one of each package that declares the name; more than one is a mistake"""

    def load(self) -> Any:
        """The object that the entry point names.

        Raises:
            PlannerError: it cannot be imported, or several packages declare its name; the message names them.
        """
        if len(self.entries) > 1:
            raise self.error("several packages declare this name")
        try:
            return self.entries[0].load()
        except Exception as error:  # a stranger's module may raise anything
            raise self.error(f"{type(error).__name__}: {last_line(str(error))}") from error

    def error(self, why: str) -> PlannerError:
        """The refusal of it, with the packages' names and what to do."""
        packages = " and ".join(sorted(f"{its.dist.name} {its.dist.version}" for its in self.entries if its.dist))
        name = f"{self.entries[0].group}: {self.entries[0].name} of {packages}"
        return PlannerError(f"{name} cannot be used ({why}); repair or uninstall the package")


def installed(group: str) -> dict[str, Plugin]:
    """The names that installed packages declare in a group, sorted; nothing is imported yet."""
    found = entry_points(group=group)
    return {name: Plugin(entries=tuple(found.select(name=name))) for name in sorted(found.names)}
