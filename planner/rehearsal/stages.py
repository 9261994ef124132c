"""A history of world sizes that a job is rehearsed with."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One generation: so many workers, until this step."""

    world_size: int
    end_step: int


def stages(sizes: Sequence[int], num_steps: int) -> list[Stage]:
    """The steps in equal parts over the world sizes, one after another.

    Raises:
        ValueError: more sizes than steps.
    """
    if len(sizes) > num_steps:
        raise ValueError(f"{len(sizes)} world sizes do not fit into {num_steps} steps")
    ends = [num_steps * (i + 1) // len(sizes) for i in range(len(sizes))]
    return [Stage(world_size=size, end_step=end) for size, end in zip(sizes, ends, strict=True)]
