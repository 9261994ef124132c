"""What is minimised. Each objective is one small file with its formula.

An objective declares integer denominators per micro-batch, from labels alone; they are summed over the whole
global batch before the step begins, and its loss is the micro-batch's part of the global mean.
"""

from typing import Any, Protocol

from torch import Tensor, nn

from planner import job
from planner.job import LmObjective
from planner.train.batches import MicroBatch


class Objective(Protocol):
    """How a micro-batch becomes its part of the loss."""

    @property
    def num_denominators(self) -> int:
        """1 for most; losses like ORPO's have two."""
        ...

    def denominators(self, batch: Any) -> tuple[int, ...]:
        """This micro-batch's part of each denominator; a ghost's are zero."""
        ...

    def loss(self, model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """A scalar in float32 that, summed over all micro-batches of the step, is the loss of the global batch."""
        ...


def make_objective(config: job.Objective) -> Objective:
    """The objective that a job names."""
    assert isinstance(config, LmObjective)  # who has one of his own does not come here
    from planner.train.objectives.lm import LanguageModelling

    return LanguageModelling()


def denominators(objective: Objective, batches: list[MicroBatch]) -> tuple[int, ...]:
    """Each denominator's sum over micro-batches; zeros for none."""
    parts = [objective.denominators(batch) for batch in batches]
    return tuple(sum(part[i] for part in parts) for i in range(objective.num_denominators))
