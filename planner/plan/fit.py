"""How many workers fit on one node, as Ray counts it, and how many a run uses.

The plan, the dry run, the launch and the scaling policy all ask here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Resources = Mapping[str, float]
"""Ray's name of a resource -> amount"""

PARTS = 10_000
"""Ray counts resources in ten-thousandths: `kResourceUnitScaling` in its src/ray/common/constants.h"""

# Ray cuts these into instances of 1, and what takes part of one lies in a single instance: GPU in its
# src/ray/common/scheduling, the others by the default of RAY_custom_unit_instance_resources (Ray 2.60).
UNIT_INSTANCE = frozenset({"GPU", "neuron_cores", "TPU", "NPU", "HPU", "RBLN"})


@dataclass(frozen=True, kw_only=True)
class WorkerRange:
    """How many workers a run may have: `least` to `most`, both included.

    Raises:
        ValueError: it is empty, or begins below 1.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a run has 1 worker or more, and its least is at most its most: {self}")

    def nearest(self, room: int) -> int:
        """The count in the range that is closest to `room`."""
        return max(self.least, min(room, self.most))


def worker_range(*, workers_min: int, workers_max: int, global_batch: int) -> WorkerRange:
    """The counts that a run uses: `workers.min` to `workers.max`, but no more than samples in a batch.

    A worker without a sample would only take part in collectives.

    Raises:
        ValueError: `workers_min` is above `workers_max` or `global_batch`. A `Job` never is like that.
    """
    return WorkerRange(least=workers_min, most=min(workers_max, global_batch))


def workers_on_node(offered: Resources, taken: Resources) -> int:
    """The number of workers that fit on a node which has `offered`, where each takes `taken`.

    Ray's `FixedPoint(double)` drops what is below a ten-thousandth, so a worker that asks for 0.57 takes 0.5699.
    A node has whole amounts. What Ray reports to be left of them is rounded: it is a sum of floats, off by a bit.

    Raises:
        ValueError: a worker takes nothing. Any number of them would fit.
    """
    if not any(taken.values()):
        raise ValueError("a worker that takes nothing fits any number of times")
    return min(_times(name, offered.get(name, 0), amount) for name, amount in taken.items() if amount)


def _times(name: str, offered: float, taken: float) -> int:
    """How many times one resource of a node can be taken."""
    have, want = round(offered * PARTS), int(taken * PARTS)
    if want == 0:
        return 0  # Ray starts no actor that takes less than a ten-thousandth of something
    if name not in UNIT_INSTANCE:
        return have // want
    if want < PARTS:
        return have // PARTS * (PARTS // want)
    return 0 if want % PARTS else have // want  # 1.5 of them: newer Rays refuse that
