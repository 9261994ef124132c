"""Which cloud this machine is in, by asking each in its own way: all of them answer at the same address."""

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
KNOWN: tuple[MakesCloud, ...] = (Gcp, Aws, Azure)


def find_cloud(endpoint: Endpoint) -> tuple[Cloud | None, str]:
    """The cloud that answers at the endpoint, or None; and in words why none does.

    Those of installed packages are asked last. One that cannot be used is named where no other cloud answers.
    """
    why = "what answers there is none of them"
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
    """What installed packages add; why one of them cannot be used is noted in `broken`."""
    for plugin in installed(GROUP).values():
        try:
            make = plugin.load()
            if not callable(make):
                raise plugin.error("it is no function that makes a planner.notice.notice.Cloud of an endpoint")
        except PlannerError as error:
            broken.append(str(error))
        else:
            yield partial(_Foreign, plugin, make)


class _Foreign:
    """The cloud of a package. What its code raises is no answer: the agent asks again, and says why."""

    def __init__(self, plugin: Plugin, make: MakesCloud, endpoint: Endpoint) -> None:
        self._plugin = plugin
        with self._naming_the_package():
            self._cloud = make(endpoint)
            self.name, self.poll_s = str(self._cloud.name), float(self._cloud.poll_s)

    def answers(self) -> bool:
        """Whether the endpoint is this cloud's."""
        with self._naming_the_package():
            return bool(self._cloud.answers())

    def look(self, now_s: float) -> Seen:
        """Ask once."""
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
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            raise Unreachable(str(self._plugin.failed(error))) from error
