"""What a step costs in dollars, by a price list of the user's."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.plan.plan import ceil_div

Market = Literal["on demand", "spot"]

_MEMORY = re.compile(r"-?(\d+)gb?$")
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine that can be rented, in dollars per hour for the whole machine."""

    gpu: str
    """as the list names it, such as `A100-80GB`"""
    gpus: int
    """on the machine, 1 or more"""
    on_demand: float | None
    """None if it is not sold so"""
    spot: float | None
    name: str = ""
    """such as `p4d.24xlarge`. Empty if the list has prices of GPUs alone"""
    place: str = ""
    """such as `us-east-1`. Empty if not known"""

    def usd_per_hour(self, market: Market) -> float | None:
        """Of the whole machine. None if it is not sold so."""
        return self.on_demand if market == "on demand" else self.spot

    @property
    def text(self) -> str:
        """`8 x H100 (p5.48xlarge, us-east-1)`."""
        where = ", ".join(filter(None, (self.name, self.place)))
        return f"{self.gpus} x {self.gpu}" + (f" ({where})" if where else "")


@dataclass(frozen=True, kw_only=True)
class Rent:
    """The cheapest way to rent a number of GPUs."""

    offer: Offer
    machines: int
    usd_per_hour: float
    """of all of them"""

    def usd_per_step(self, seconds: float) -> float:
        """Of a step that takes so long."""
        return self.usd_per_hour * seconds / _HOUR_S


def rent(offers: Sequence[Offer], gpus: int, market: Market) -> Rent | None:
    """The cheapest machines of one kind that have so many GPUs. None if none of the offers is sold so.

    Whole machines are paid: 3 GPUs on a machine of 8 cost as much as 8. Between equal prices, the smaller machine.
    """
    ways = [
        Rent(offer=offer, machines=ceil_div(gpus, offer.gpus), usd_per_hour=ceil_div(gpus, offer.gpus) * price)
        for offer in offers
        if (price := offer.usd_per_hour(market)) is not None
    ]
    return min(ways, key=lambda way: (way.usd_per_hour, way.offer.gpus, way.offer.text), default=None)


def offers_of(offers: Sequence[Offer], gpu: str) -> tuple[Offer, ...]:
    """The offers of a GPU by its name.

    Upper case, blanks, `-`, `_` and a final `b` do not count, so `h100-80g` and `H100-80GB` are the same. A name with
    the size of its memory also finds the GPU that a list names without one (`h100-80g` and `H100`), if the list has no
    GPU with that size. A name without a size finds only itself: in SkyPilot's catalogs an `A100` has 40 GB.
    """
    whole, base = _key(gpu), _MEMORY.sub("", _key(gpu))
    found = tuple(offer for offer in offers if _key(offer.gpu) == whole)
    return found or tuple(offer for offer in offers if whole != base and _key(offer.gpu) == base)


def is_same_gpu(one: str, other: str) -> bool:
    """Whether two names of a list are one name in two spellings, such as `A100-80GB` and `a100-80g`."""
    return _key(one) == _key(other)


def _key(name: str) -> str:
    key = re.sub(r"[\s_]+", "-", name.strip().lower())
    return re.sub(r"(\d)gb$", r"\1g", key.removeprefix("nvidia-"))
