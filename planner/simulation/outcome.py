"""What a policy made of a trace."""

from dataclasses import dataclass

from planner.events.event import Event

POLICIES = ("ours", "stock", "fixed", "divisors", "optimum", "fair")
"""in the order in which they are shown"""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of the group or of what it does."""

    time_s: float
    nodes: int
    """that are there"""
    workers: int
    """of the group from now on. 0 if none trains"""
    what: str
    """`starts`, `lost`, `stops`, `warms`, `calls off` or `waits`"""
    events: tuple[Event, ...] = ()
    """the decision in the product's own words. Empty for other policies"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one policy. The five times add up to the trace's length."""

    policy: str
    steps: float
    """that count, the begun one in parts"""
    ideal_steps: float
    """with each node while it is there, and without any pause"""
    useful_s: float
    """in steps that count"""
    paused_s: float
    """in starts, and until a loss is noticed"""
    redone_s: float
    """in steps that were lost, and in commits that were cut off"""
    idle_s: float
    """without a group, or with one that has parked"""
    commit_s: float
    """in commits"""
    resizes: int
    """starts of a group, the first one included"""
    commits: int
    losses: int
    """of a group's node while the group trains"""
    changes: tuple[Change, ...] = ()

    @property
    def useful_over_ideal(self) -> float:
        """Work that counts, as a part of the ideal run's."""
        return self.steps / self.ideal_steps if self.ideal_steps else 0.0

    @property
    def total_s(self) -> float:
        """The trace's length."""
        return self.useful_s + self.paused_s + self.redone_s + self.idle_s + self.commit_s
