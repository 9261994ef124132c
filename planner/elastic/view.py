"""What the controller sees at one moment (`View`), and what it decides (`Act`): plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from planner.base.node_market import ON_DEMAND
from planner.events.event import Event


@dataclass(frozen=True, kw_only=True)
class View:
    """The cluster and the group at one moment."""

    room: Mapping[str, int]
    """node -> workers of this job that it holds or could hold, without nodes that are dead or have notice"""
    draining: Mapping[str, float]
    """node -> seconds until it goes. Infinite if the notice has no deadline"""
    dead: frozenset[str] = frozenset()
    """nodes that are dead, or that do not answer"""
    markets: Mapping[str, str] = field(default_factory=dict)
    """node -> its label `ray.io/market-type`. Nodes without this label are missing"""
    nodes: tuple[str, ...] = ()
    """the node of each rank. Empty if no group runs"""
    parked: frozenset[int] = frozenset()
    """ranks that have committed, or copied their last step into memory, and wait"""
    silent: frozenset[int] = frozenset()
    """ranks whose process has not answered the last query yet. A busy process is sometimes late"""
    progress: int = 0
    """units of work that the group has done. Any change of this number is progress"""
    newcomers: Literal["none", "warming", "ready", "failed"] = "none"
    """state of the processes that were started beside the group"""
    can_hold: bool = False
    """every node of the group has a keeper that answers, so a stop may leave its last step in memory"""
    is_ending: bool = False
    """the driver wants to end the run. Stays true once set"""

    @cached_property
    def on_demand(self) -> frozenset[str]:
        """Nodes that no cloud takes back, by their label."""
        return frozenset(node for node, market in self.markets.items() if market == ON_DEMAND)

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Nodes of the group that have notice."""
        return frozenset(self.nodes) & frozenset(self.draining)

    @property
    def leaves_in_s(self) -> float:
        """Seconds until the first node of the group goes. Infinite without a notice or without a deadline."""
        return min((self.draining[node] for node in self.leaving), default=float("inf"))

    @property
    def all_parked(self) -> bool:
        """Whether every worker of the group has committed, or copied its last step into memory, and waits."""
        return len(self.parked) == len(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Act:
    """What the caller must do now."""

    kind: Literal["nothing", "warm", "stop", "resize", "abandon_newcomers", "end"] = "nothing"
    """`end`: everything that could be saved is committed, and the driver may end the run"""
    world_size: int = 0
    """for `resize`: workers of the new group. For `warm`: the number of newcomers"""
    planned: bool = False
    """for `resize`: every worker has parked, and its last step is durable or in memory"""
    in_memory: bool = False
    """for `stop`: the last step may stay in the keepers' memory. Otherwise it must become durable. A later stop of the
    same group that is not in memory overrides one that is"""
    cut: bool = False
    """for `stop`: workers give up the step in flight if they can agree on it between two rounds. Otherwise they finish
    it. A later stop of the same group with it overrides one without"""
    events: tuple[Event, ...] = ()
    """for the ledger of the group that runs, or for the driver's terminal if no group runs"""
