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
        entry = self.entries[0]
        packages = sorted(f"{its.dist.name} {its.dist.version}" for its in self.entries if its.dist)
        what = f"{entry.group}: {entry.name} of {' and '.join(packages)}"
        if len(self.entries) > 1:
            raise PlannerError(f"{what}: several packages declare this name; uninstall all but one")
        try:
            return entry.load()
        except Exception as error:  # a stranger's module may raise anything
            reason = f"{type(error).__name__}: {last_line(str(error))}"
            raise PlannerError(f"{what} cannot be loaded ({reason}); repair or uninstall the package") from error


def installed(group: str) -> dict[str, Plugin]:
    """The names that installed packages declare in a group, sorted; nothing is imported yet."""
    found = entry_points(group=group)
    return {name: Plugin(entries=tuple(found.select(name=name))) for name in sorted(found.names)}
