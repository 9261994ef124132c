"""Which errors of the user's own code end a run at once.

A failed worker group is usually tried again, because nodes, networks and storage come back. A mistake in code does not
go away by itself, so a retry would only hide the error behind more starts. `planner.base.user_errors.origin_of` tells
mistakes from failures of the cluster and of storage. One node may lack a package or a mount: then its worker alone
raises the error, and planner tries again as often as after other failures.
"""

from dataclasses import dataclass
from typing import Literal

from planner.events.failures import GivesUp, StopsForMemory


class GaveUp(Exception):
    """The run ends, because another try would not help. The caller makes the text from `event`."""

    def __init__(self, event: GivesUp | StopsForMemory) -> None:
        super().__init__(event)
        self.event = event


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An error of the user's code that ended a group, while no node of the group was lost."""

    error: tuple[str, str, str]
    """its type, its message, and file and line (`planner.base.user_errors.CodeError`)"""
    num_steps: int
    """how many steps its group had done"""
    node: str = ""
    """of the only worker that is known to have raised it. Empty if several did, or if the group had no other node"""


def why_final(
    mistake: Mistake, last: Mistake | None, *, best_step: int
) -> Literal["mistake_at_start", "same_mistake"] | None:
    """Why another try would meet the same mistake. None if it may not, so that planner tries again.

    Args:
        mistake: what ended the group.
        last: the mistake that ended the group before it. None if it did not end by one, or a new step was done since.
        best_step: the most steps that were done in this launch. 0 before the first.
    """
    if not mistake.num_steps and not best_step:
        return "mistake_at_start"
    if last is None or mistake.error != last.error or (mistake.node and mistake.node == last.node):
        return None
    return "same_mistake"
