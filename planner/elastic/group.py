"""What the controller knows about the worker group that runs, and whether the group hangs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from planner.elastic.history import History
from planner.elastic.pause import NotAResize, Pause
from planner.elastic.view import View
from planner.events.event import Event
from planner.events.failures import Hung
from planner.plan import longest_silence_s, longest_unanswered_s

# The controller looks at a group every half second. After a longer gap than this, the controller itself was suspended,
# perhaps together with the group. That time does not count as the group's silence.
_LOOK_MOST_S = 15.0


ReasonKey = tuple[int, frozenset[type[Event]]]
"""the size of a group, and the kinds of the reasons for its unused places (`planner.elastic.places`)"""


@dataclass(frozen=True, kw_only=True)
class GroupNotice:
    """The preemption notices for nodes of the group. `nodes` is empty if there is none."""

    nodes: frozenset[str] = frozenset()
    first_s: float = 0.0
    """when the first notice was seen"""
    last_s: float = 0.0
    """when the last notice was seen"""

    def with_nodes(self, nodes: frozenset[str], now_s: float) -> Self:
        """A copy that also has `nodes`, the ones that have notice now. Earlier nodes stay."""
        if nodes <= self.nodes:
            return self
        return replace(self, nodes=self.nodes | nodes, first_s=self.first_s if self.nodes else now_s, last_s=now_s)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A worker group that runs. All times are on the controller's clock."""

    nodes: tuple[str, ...]
    """the node of each rank"""
    started_s: float
    seen_s: float
    """time of the last progress, moved forward by the gaps in which the controller did not look"""
    looked_s: float
    stepped_s: float
    """time of the last step, or of the start"""
    pause: Pause = field(default_factory=NotAResize)
    """the pause that this group's first step ends"""
    num_steps: int = 0
    """steps reported by this group"""
    began_step: int = 0
    """steps that were done before this group's first reported one. Known with the first report"""
    num_done: int = 0
    """steps of the run that are done, as last reported"""
    held_step: int = 0
    """of the newest commit, as last reported. It may still be written"""
    held_since_s: float = 0.0
    """when that step was reported first"""
    copied_step: int = 0
    """the newest step that the keepers of all workers have in memory, as last reported"""
    durable_step: int = 0
    """step of the newest durable commit, as last reported"""
    durable_after_s: float = 0.0
    """seconds from the end of the last step until it was durable, or its copies in memory were sealed. 0 before rank 0
    has parked"""
    is_held: bool = False
    """whether the group has parked and its last step is only in memory"""
    can_hold: bool = False
    """whether every node of the group has a keeper, as last seen"""
    is_last: bool = False
    """whether the reported step is the group's last one, after which it only commits"""
    progress: int = 0
    deaf_since: Mapping[int, float] = field(default_factory=dict)
    """rank -> time since when its process has not answered"""
    notice: GroupNotice = GroupNotice()
    told: Mapping[ReasonKey, int] = field(default_factory=dict)
    """like `ControllerContext.told`, of events that the group may not have written yet"""

    @classmethod
    def started(cls, nodes: tuple[str, ...], pause: Pause, now_s: float) -> Self:
        """A group that starts now."""
        return cls(nodes=nodes, pause=pause, started_s=now_s, seen_s=now_s, looked_s=now_s, stepped_s=now_s)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.nodes)

    def seen(self, view: View, now_s: float) -> Self:
        """A copy with the progress and the silent ranks of this view."""
        seen_s = now_s if view.progress != self.progress else self.seen_s
        unseen_s = max(now_s - self.looked_s - _LOOK_MOST_S, 0.0)
        deaf = {rank: min(self.deaf_since.get(rank, now_s) + unseen_s, now_s) for rank in view.silent}
        return replace(
            self,
            progress=view.progress,
            can_hold=view.can_hold,
            seen_s=min(seen_s + unseen_s, now_s),
            looked_s=now_s,
            deaf_since=deaf,
        )

    @property
    def is_committing(self) -> bool:
        """Whether a commit was held and not yet durable at the last report."""
        return self.held_step > self.durable_step

    @property
    def is_fresh(self) -> bool:
        """Whether a step is durable that is no older than the one this group began with.

        So of two hand-overs from memory in a row, a commit has landed between them.
        """
        return self.num_steps > 0 and self.durable_step >= self.began_step

    def stepped(self, metrics: Mapping[str, Any], now_s: float) -> Self:
        """A copy after a step that rank 0 reported. `planner.train.step_records` has the keys."""
        held_step = int(metrics["held_step"])
        return replace(
            self,
            seen_s=now_s,
            stepped_s=now_s,
            num_steps=self.num_steps + 1,
            began_step=self.began_step if self.num_steps else int(metrics["step"]),
            num_done=int(metrics["step"]) + 1,
            held_step=held_step,
            held_since_s=self.held_since_s if held_step == self.held_step else now_s,
            copied_step=int(metrics["copied_step"]),
            durable_step=int(metrics["durable_step"]),
            is_last=bool(metrics["is_last"]),
        )

    def deaf(self, for_s: float) -> list[int]:
        """Ranks that have not answered for more than `for_s` seconds. A busy process only answers late."""
        return [rank for rank, since_s in self.deaf_since.items() if self.looked_s - since_s > for_s]


def is_hung(group: Group, history: History, now_s: float) -> bool:
    """Whether no worker has made progress for too long. The limit is shorter if a worker has not answered either."""
    unmoved_s, deafness_s = now_s - group.seen_s, _deafness_s(group, history)
    return unmoved_s > silence_limit_s(group, history) or (unmoved_s > deafness_s and bool(group.deaf(deafness_s)))


def hang(group: Group, history: History, now_s: float) -> tuple[Hung, tuple[int, ...]]:
    """The evidence that a group hangs, and the ranks that do not answer either. Call it when `is_hung` is true."""
    deafness_s = _deafness_s(group, history)
    deaf = tuple(group.deaf(deafness_s))
    limit_s = deafness_s if deaf else silence_limit_s(group, history)
    return Hung(silence_s=now_s - group.seen_s, limit_s=limit_s, deaf=len(deaf)), deaf


def _deafness_s(group: Group, history: History) -> float:
    """The limit without progress while a worker does not answer."""
    return longest_unanswered_s(
        round_s=history.round_s(group.size),
        commit_s=history.measured_commit_s(group.size),
        is_measured=history.is_speed_measured,
    )


def silence_limit_s(group: Group, history: History) -> float:
    """The limit without progress while all workers answer."""
    return _silence_limit_s(group.size, history) if group.num_steps else start_limit_s(group.size, history)


def start_limit_s(world_size: int, history: History) -> float:
    """The limit without progress before the first step of a group of this size, while all workers answer."""
    # Before its first step, a group reads the commit, perhaps with fewer workers, and compiles kernels.
    at_start_s = 10 * history.first_step_s + 5 * history.measured_commit_s(world_size)
    return max(_silence_limit_s(world_size, history), at_start_s)


def _silence_limit_s(world_size: int, history: History) -> float:
    return longest_silence_s(
        round_s=history.round_s(world_size),
        commit_s=history.measured_commit_s(world_size),
        is_measured=history.is_speed_measured,
    )
