"""The choice: batch sizes, a world size and facts in, one plan out."""

from dataclasses import dataclass
from typing import Literal

from planner.errors import PlanError
from planner.plan.layout import LAYOUT_VERSION, LAYOUTS
from planner.plan.limits import MAX_GLOBAL_BATCH, MAX_MICRO, MAX_WORKERS
from planner.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """What the recipe fixes: `global_batch` samples per optimizer step, at most `max_micro` in a forward pass."""

    global_batch: int
    max_micro: int
    equality: Literal["batches", "bitwise"] = "batches"
    """what must be equal at every world size: the samples of a step, or every bit of the weights"""

    def __post_init__(self) -> None:
        _check("batch.global", self.global_batch, MAX_GLOBAL_BATCH)
        _check("batch.max_micro", self.max_micro, MAX_MICRO)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was gathered once at the start of a generation and written to the ledger.

    It stands in every signature because a plan must be a function of all it uses: GPU kinds, learned memory caps and
    fitted speeds enter here, and nowhere else. So far, only the version of the arithmetic does.
    """

    layout_version: int = LAYOUT_VERSION
    """see `planner.plan.layout`"""


def choose(batch: BatchSizes, world_size: int, facts: Facts) -> Plan:
    """The plan for `world_size` workers; see `planner.plan.layout` for the arithmetic of both modes.

    Raises:
        PlanError: `world_size` is not in `[1, 65536]`, or there is no such layout version.
    """
    if facts.layout_version not in LAYOUTS:
        known = ", ".join(map(str, LAYOUTS))
        raise PlanError(
            f"a plan of layout version {facts.layout_version} was made by another version of planner; this one knows "
            f"{known}: use the version that made it"
        )
    _check("the world size", world_size, MAX_WORKERS)
    return Plan(
        global_batch=batch.global_batch,
        world_size=world_size,
        max_micro=batch.max_micro,
        mode="bitwise" if batch.equality == "bitwise" else "balanced",
        layout_version=facts.layout_version,
    )


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise PlanError(f"{name} is {value}; write a whole number from 1 to {most}")
