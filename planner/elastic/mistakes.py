"""Which errors of the user's own code end a run at once.

A failed worker group is usually tried again, because nodes, networks and storage come back. A mistake in code does not
go away by itself, so a retry would only hide the error behind more starts. `planner.base.user_errors.origin_of` tells
mistakes from failures of the cluster and of storage.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An error of the user's code that ended a group, while no node of the group was lost."""

    text: str
    """the error's type, message, file and line"""
    num_steps: int
    """how many steps its group had done"""


def why_final(mistake: Mistake, last: str, *, best_step: int) -> str:
    """Why another try would meet the same mistake. Empty if it may not, so that planner tries again.

    Args:
        mistake: what ended the group.
        last: text of the mistake that ended the group before it. Empty if it did not end by one, or a new step was done
            since.
        best_step: the most steps that were done in this launch. 0 before the first.
    """
    if not mistake.num_steps and not best_step:
        return "the code failed before the first step"
    return "the code failed twice in a row at this line, without a new step in between" if mistake.text == last else ""
