"""What the controller sees at one moment, and what it decides: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class View:
    """What there is to see at one moment."""

    room: Mapping[str, int]
    """node -> workers of this job that it holds or could hold; nodes that are dead or about to go are left out"""
    draining: Mapping[str, float]
    """node -> seconds until it goes; infinite if nobody said when"""
    nodes: tuple[str, ...] = ()
    """the node of each rank; empty where no group runs"""
    parked: frozenset[int] = frozenset()
    """ranks that have committed and wait"""
    silent: frozenset[int] = frozenset()
    """ranks whose process has not answered the last question yet; a busy one is late now and then"""
    progress: int = 0
    """units of work that the group's workers have done; a change of this number is progress"""
    newcomers: Literal["none", "warming", "ready", "failed"] = "none"
    """processes that were started beside the group"""
    is_ending: bool = False
    """the driver wants to end the run; once true, it stays so"""

    @property
    def leaving(self) -> frozenset[str]:
        """Nodes of the group that are about to go."""
        return frozenset(self.nodes) & frozenset(self.draining)

    @property
    def leaves_in_s(self) -> float:
        """Until the first node of the group goes; infinite if none does, or nobody said when."""
        return min((self.draining[node] for node in self.leaving), default=float("inf"))

    @property
    def all_parked(self) -> bool:
        """Whether every worker of the group has committed and waits."""
        return len(self.parked) == len(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Act:
    """What to do now."""

    kind: Literal["nothing", "warm", "stop", "resize", "abandon_newcomers", "end"] = "nothing"
    """`end`: all that could be saved is, and the driver may end the run"""
    world_size: int = 0
    """for `resize`; for `warm` the number of newcomers"""
    planned: bool = False
    """for `resize`: every worker is parked, all is committed"""
    texts: tuple[str, ...] = ()
    """for the ledger of the group that runs; for the driver's terminal, where none does"""
