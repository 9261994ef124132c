"""All objectives: planner's own, and those of installed packages (the entry points `planner.objectives`).

The value of an entry point names an `ObjectiveSpec`. `planner.job.kind_registry` says when a package is imported.
"""

from collections.abc import Mapping
from functools import cache

from planner.errors import ObjectiveUnavailable
from planner.job.kind_registry import KindRegistry
from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import OURS

OBJECTIVES = KindRegistry(
    what="objective",
    group="planner.objectives",
    ours=OURS,
    spec=ObjectiveSpec,
    unavailable=ObjectiveUnavailable,
)
"""every objective. Its methods raise `ObjectiveUnavailable`"""


def spec_of(objective: Objective) -> ObjectiveSpec:
    """The facts about a job's objective.

    Raises:
        ObjectiveUnavailable: no such objective is installed, or its package cannot be used.
    """
    return OBJECTIVES.spec_of_kind(objective.kind)


@cache
def shown_metrics() -> Mapping[str, str]:
    """The metrics that a terminal shows beside the loss, of all usable objectives -> the label of each.

    If two objectives give one metric different labels, the first one's is shown.
    """
    shown: dict[str, str] = {}
    for spec in OBJECTIVES.usable_specs():
        for name, label in spec.shown.items():
            shown.setdefault(name, label)
    return shown
