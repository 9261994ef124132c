"""How many workers fit on one node by Ray's own counting, and how many workers a run uses.

The plan, the dry run, the launch and the scaling policy all use these functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Resources = Mapping[str, float]
"""Ray's name of a resource (CPU, GPU, custom) -> amount"""

PARTS = 10_000
"""Ray counts resources in ten-thousandths: `kResourceUnitScaling` in its src/ray/common/constants.h"""
LEAST_RESOURCE = 1 / PARTS
"""the smallest amount of a resource that a worker can take"""

# Ray splits these into instances of 1, and a worker that takes a fraction gets it from a single instance: GPU in Ray's
# src/ray/common/scheduling, the others by the default of RAY_custom_unit_instance_resources (Ray 2.60).
UNIT_INSTANCE = frozenset({"GPU", "neuron_cores", "TPU", "NPU", "HPU", "RBLN"})


@dataclass(frozen=True, kw_only=True)
class WorkerRange:
    """How many workers a run may have: from `least` to `most`, both included.

    Raises:
        ValueError: the range is empty, or begins below 1.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a worker range begins at 1 or more and is not empty: {self}")

    def nearest(self, room: int) -> int:
        """The count in the range that is closest to `room`."""
        return max(self.least, min(room, self.most))


def worker_range(*, workers_min: int, workers_max: int, global_batch: int) -> WorkerRange:
    """The worker counts that a run uses: `workers_min` to `workers_max`, but at most `global_batch`.

    A worker without a sample would only take part in collectives.

    Raises:
        ValueError: `workers_min` is above `workers_max` or `global_batch`. A checked `Job` never has such values.
    """
    return WorkerRange(least=workers_min, most=min(workers_max, global_batch))


def workers_on_node(offered: Resources, taken: Resources) -> int:
    """The number of workers that fit on a node that has `offered`, where each worker takes `taken`.

    Ray's `FixedPoint(double)` truncates to ten-thousandths, so a worker that asks for 0.57 takes 0.5699. A node's
    amount is rounded instead: Ray reports what is left as a sum of floats, which may be off by one bit.

    Raises:
        ValueError: a worker takes nothing, so any number of workers would fit.
    """
    if not any(taken.values()):
        raise ValueError("a worker takes no resources, so any number of workers would fit")
    return min(_times(name, offered.get(name, 0), amount) for name, amount in taken.items() if amount)


def _times(name: str, offered: float, taken: float) -> int:
    """How many times one resource of a node can be taken."""
    have, want = round(offered * PARTS), int(taken * PARTS)
    if want == 0:
        return 0  # Ray starts no actor that takes less than a ten-thousandth of a resource
    if name not in UNIT_INSTANCE:
        return have // want
    if want < PARTS:
        return have // PARTS * (PARTS // want)
    return 0 if want % PARTS else have // want  # newer versions of Ray refuse 1.5 of a unit resource
