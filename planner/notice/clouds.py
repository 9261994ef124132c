"""Which cloud this machine is in, by asking each in its own way: all of them answer at the same address."""

from collections.abc import Callable, Iterator
from itertools import chain

from planner.base.plugins import installed
from planner.errors import PlannerError
from planner.notice.aws import Aws
from planner.notice.azure import Azure
from planner.notice.fetch import Endpoint, Unreachable
from planner.notice.gcp import Gcp
from planner.notice.notice import Cloud

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
            yield make
