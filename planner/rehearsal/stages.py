"""The history of world sizes of a rehearsal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SizePhase:
    """One generation: `world_size` workers train until `end_step`."""

    world_size: int
    end_step: int


def stages(sizes: Sequence[int], num_steps: int) -> list[SizePhase]:
    """Divide the steps into equal stages, one per world size, in order.

    Raises:
        ValueError: there are more sizes than steps.
    """
    if len(sizes) > num_steps:
        raise ValueError(f"{len(sizes)} world sizes do not fit into {num_steps} steps")
    ends = [num_steps * (i + 1) // len(sizes) for i in range(len(sizes))]
    return [SizePhase(world_size=size, end_step=end) for size, end in zip(sizes, ends, strict=True)]
