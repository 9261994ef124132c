"""Checks batch sizes and a world size, and makes the plan for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from planner.errors import PlanError
from planner.plan.by_length import BY_LENGTH_LAYOUT, BY_LENGTH_LAYOUTS
from planner.plan.layout import LAYOUTS
from planner.plan.plan import LAYOUT_VERSION, Mode, Plan

# The largest numbers that planner accepts, in job files and plans.
MAX_GLOBAL_BATCH = 2**20
MAX_MICRO = 4096
MAX_TOKENS = 2**24
MAX_WORKERS = 65_536


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """What the recipe fixes: `global_batch` samples per optimizer step, at most `max_micro` in a forward pass."""

    global_batch: int
    max_micro: int
    max_tokens: int | None = None
    """the most tokens of a forward pass. None: samples alone are counted"""
    attention_at: int | None = None
    """the length at which a sample's attention costs as much as all else. None: a sample costs its tokens"""
    equality: Mode = "balanced"
    """what is equal at every world size: `balanced` the samples of a step, `bitwise` every bit of the weights"""

    def __post_init__(self) -> None:
        _check("batch.global", self.global_batch, MAX_GLOBAL_BATCH)
        _check("batch.max_micro", self.max_micro, MAX_MICRO)
        if self.equality not in get_args(Mode):
            raise PlanError(f"batch.equality is {self.equality!r}. Write one of {', '.join(get_args(Mode))}")
        for name in ("max_tokens", "attention_at"):
            if (value := getattr(self, name)) is not None:
                _check(f"batch.{name}", value, MAX_TOKENS)
        if self.attention_at is not None and self.max_tokens is None:
            raise PlanError("batch.attention_at is set, and batch.max_tokens is not. Set both, or remove attention_at")

    @property
    def apart_from_caps(self) -> tuple[int, Mode, int | None, bool]:
        """What jobs that differ only in their caps share: G, what is equal, what attention costs, if tokens count."""
        return self.global_batch, self.equality, self.attention_at, self.max_tokens is not None


def make_plan(batch: BatchSizes, world_size: int, layout_version: int | None = None) -> Plan:
    """The plan for `world_size` workers: a `ByLength` if there is a cap on tokens.

    `planner.plan.layout` and `planner.plan.by_length` have the arithmetic of both modes.

    Args:
        batch: the batch sizes of the recipe.
        world_size: number of workers, from 1 to 65,536.
        layout_version: version of the arithmetic. An audit passes the version that the run used. By default the newest.

    Raises:
        PlanError: `world_size` is not in `[1, 65536]`, or there is no such layout version.
    """
    _check("the world size", world_size, MAX_WORKERS)
    sizes: dict[str, Any] = {"global_batch": batch.global_batch, "world_size": world_size, "max_micro": batch.max_micro}
    layouts: Mapping[int, Mapping[Mode, type[Plan]]] = LAYOUTS
    version = LAYOUT_VERSION if layout_version is None else layout_version
    if batch.max_tokens is not None:
        layouts = BY_LENGTH_LAYOUTS
        version = BY_LENGTH_LAYOUT if layout_version is None else layout_version
        sizes |= {"max_tokens": batch.max_tokens, "attention_at": batch.attention_at}
    if version not in layouts:
        raise PlanError(
            f"the plan has layout version {version}, and this version of planner knows {', '.join(map(str, layouts))}. "
            "Use the version that made it"
        )
    return layouts[version][batch.equality](**sizes, layout_version=version)


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise PlanError(f"{name} is {value}. Write a whole number from 1 to {most}")
