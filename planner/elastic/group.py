"""What the controller knows of the worker group that runs, and whether the group hangs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from planner.elastic.history import History
from planner.elastic.pause import Pause, UnmeasuredPause
from planner.elastic.view import View
from planner.plan import longest_silence_s, longest_unanswered_s

# Between two looks at a group; they are half a second apart. What is more, the controller was suspended itself, and
# perhaps the group with it: it is no silence of the group's.
_LOOK_MOST_S = 15.0


@dataclass(frozen=True, kw_only=True)
class GroupNotice:
    """Nodes of the group that are about to go; no nodes where no notice was given."""

    nodes: frozenset[str] = frozenset()
    first_s: float = 0.0
    """when the first of them were seen"""
    last_s: float = 0.0
    """when the last of them were seen"""

    def with_nodes(self, nodes: frozenset[str], now_s: float) -> Self:
        """A copy with those that are seen now. Those seen before stay."""
        if nodes <= self.nodes:
            return self
        return replace(self, nodes=self.nodes | nodes, first_s=self.first_s if self.nodes else now_s, last_s=now_s)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The group that runs."""

    nodes: tuple[str, ...]
    """of each rank"""
    started_s: float
    seen_s: float
    """time of the last progress, plus the time in which nobody looked"""
    looked_s: float
    stepped_s: float
    """last step, or the start"""
    pause: Pause = field(default_factory=UnmeasuredPause)
    """the one that this group's first step ends"""
    num_steps: int = 0
    """that were reported"""
    progress: int = 0
    deaf_since_s: Mapping[int, float] = field(default_factory=dict)
    """rank -> since when its process has answered nothing"""
    notice: GroupNotice = GroupNotice()

    @classmethod
    def started(cls, nodes: tuple[str, ...], pause: Pause, now_s: float) -> Self:
        """One that starts now."""
        return cls(nodes=nodes, pause=pause, started_s=now_s, seen_s=now_s, looked_s=now_s, stepped_s=now_s)

    @property
    def size(self) -> int:
        """Its number of workers."""
        return len(self.nodes)

    def seen(self, view: View, now_s: float) -> Self:
        """A copy after a look at it."""
        seen_s = now_s if view.progress != self.progress else self.seen_s
        unseen_s = max(now_s - self.looked_s - _LOOK_MOST_S, 0.0)
        deaf = {rank: min(self.deaf_since_s.get(rank, now_s) + unseen_s, now_s) for rank in view.silent}
        return replace(
            self,
            progress=view.progress,
            seen_s=min(seen_s + unseen_s, now_s),
            looked_s=now_s,
            deaf_since_s=deaf,
        )

    def stepped(self, now_s: float) -> Self:
        """A copy after a step that it reported."""
        return replace(self, seen_s=now_s, stepped_s=now_s, num_steps=self.num_steps + 1)

    def deaf(self, for_s: float) -> list[int]:
        """Ranks that have not answered for so long. A process that is only busy answers late, and that is nothing."""
        return [rank for rank, since_s in self.deaf_since_s.items() if self.looked_s - since_s > for_s]


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No worker has made progress for too long."""

    silence_s: float
    limit_s: float
    deaf_ranks: tuple[int, ...]
    """those that answer nothing either: they are to blame"""


def is_hung(group: Group, history: History, now_s: float) -> bool:
    """Whether no worker has made progress for too long; sooner, if one of them has answered nothing as long."""
    unmoved_s, deafness_s = now_s - group.seen_s, _deafness_s(group, history)
    return unmoved_s > _silence_s(group, history) or (unmoved_s > deafness_s and bool(group.deaf(deafness_s)))


def hang(group: Group, history: History, now_s: float) -> Hang:
    """What to tell of a group that hangs."""
    deafness_s = _deafness_s(group, history)
    deaf = tuple(group.deaf(deafness_s))
    limit_s = deafness_s if deaf else _silence_s(group, history)
    return Hang(silence_s=now_s - group.seen_s, limit_s=limit_s, deaf_ranks=deaf)


def _deafness_s(group: Group, history: History) -> float:
    """For how long no worker may make progress while one answers nothing."""
    return longest_unanswered_s(round_s=history.round_s(group.size), commit_s=history.commit_s(group.size))


def _silence_s(group: Group, history: History) -> float:
    """For how long no worker may make progress."""
    commit_s = history.commit_s(group.size)
    limit_s = longest_silence_s(round_s=history.round_s(group.size), commit_s=commit_s)
    if group.num_steps:
        return limit_s
    # The commit is read again, perhaps by fewer workers, and kernels are compiled again.
    return max(limit_s, 10 * history.first_step_s + 5 * commit_s)
