"""Finds out which cloud this machine is in. All clouds answer at one address, so each is asked by its own protocol."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

from planner.base.plugins import Plugin, installed
from planner.errors import PlannerError
from planner.notice.aws import Aws
from planner.notice.azure import Azure
from planner.notice.fetch import Endpoint, Unreachable
from planner.notice.gcp import Gcp
from planner.notice.notice import Cloud, Seen

GROUP = "planner.clouds"
MakesCloud = Callable[[Endpoint], Cloud]
KNOWN: tuple[type[Gcp | Aws | Azure], ...] = (Gcp, Aws, Azure)


def cloud_names() -> tuple[str, ...]:
    """The names of the clouds that are asked: planner's own, then those of installed packages. Imports no package."""
    return (*sorted(cloud.name for cloud in KNOWN), *installed(GROUP))


def find_cloud(endpoint: Endpoint) -> tuple[Cloud | None, str]:
    """`(cloud, "")` for the cloud that answers at the endpoint, or `(None, reason)` if none does.

    Clouds of installed packages are asked last. The reason names packages that cannot be used.
    """
    why = "a server answers, but not as a known cloud does"
    broken: list[str] = []
    for make in chain(KNOWN, _added(broken)):
        try:
            cloud = make(endpoint)
            if cloud.answers():
                return cloud, ""
        except Unreachable as error:
            why = str(error)
    return None, "; ".join([why, *broken])


def _added(broken: list[str]) -> Iterator[MakesCloud]:
    """The clouds of installed packages. The reason why one cannot be used is appended to `broken`."""
    for plugin in installed(GROUP).values():
        try:
            make = plugin.load()
            if not callable(make):
                raise plugin.error("it is not a function that makes a planner.notice.notice.Cloud from an endpoint")
        except PlannerError as error:
            broken.append(str(error))
        else:
            yield partial(_PluginCloud, plugin, make)


class _PluginCloud:
    """The cloud of a package. An error in its code counts as no answer: the agent reports it and asks again."""

    def __init__(self, plugin: Plugin, make: MakesCloud, endpoint: Endpoint) -> None:
        self._plugin = plugin
        with self._naming_the_package():
            self._cloud = make(endpoint)
            self.name, self.poll_s = str(self._cloud.name), float(self._cloud.poll_s)

    def answers(self) -> bool:
        """Whether this cloud answers at the endpoint."""
        with self._naming_the_package():
            return bool(self._cloud.answers())

    def look(self, now_s: float) -> Seen:
        """Ask the package's cloud once."""
        with self._naming_the_package():
            seen = self._cloud.look(now_s)
            if not isinstance(seen, Seen):
                raise TypeError(f"look returned {type(seen).__name__}")
            return seen

    @contextmanager
    def _naming_the_package(self) -> Iterator[None]:
        try:
            yield
        except Unreachable:
            raise
        except (Exception, SystemExit) as error:  # the package's code may raise anything
            raise Unreachable(str(self._plugin.failed(error))) from error
