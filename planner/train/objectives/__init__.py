"""Objectives: the losses. Each is one small file with its formula.

An objective counts integer denominators per micro-batch from the labels. They are summed over the global batch before
the step begins. Its loss is the micro-batch's part of the global mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from planner import job
from planner.data.base import SampleDataset
from planner.errors import ObjectiveUnavailable, PlannerError
from planner.job.objective_registry import OBJECTIVES
from planner.order.order import Order
from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.control import Tally
from planner.train.log_probs import no_training
from planner.train.reference.frozen import Reference
from planner.train.world import World


class Objective(Protocol):
    """Computes a micro-batch's part of the loss and of the metrics."""

    @property
    def num_denominators(self) -> int:
        """The number of denominators: 1 for `lm`, 2 for most objectives over pairs (tokens, pairs), 3 for `orpo`."""
        ...

    @property
    def metrics(self) -> Mapping[str, int]:
        """The metrics besides the loss: name -> index of the denominator that its parts are divided by."""
        ...

    def denominators(self, batch: Any) -> tuple[int, ...]:
        """This micro-batch's part of each denominator. A ghost's parts are zero.

        The first one is recorded in the ledger as the step's tokens, whether or not the loss is divided by it.
        """
        ...

    def loss(self, model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """This micro-batch's part of the loss, a float32 scalar. The sum over the step is the loss of the global batch.

        With metrics, `(1 + len(metrics),)`: the loss, then the metrics' parts, which have no gradient.
        """
        ...


@runtime_checkable
class CoupledObjective(Objective, Protocol):
    """An objective in which a sample's loss depends on numbers that come from the whole global batch.

    The numbers are computed in forward passes without gradient before the step's first backward pass, and summed
    exactly. So they do not depend on the split.
    """

    def shared(self, model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """This micro-batch's part of each shared number, `(k,)`, to be summed. A ghost's parts are zero."""
        ...

    def given(self, numbers: tuple[float, ...]) -> Objective:
        """The objective for a global batch with these shared numbers."""
        ...

    def remark(self, totals: tuple[int, ...]) -> str:
        """A note for people about a global batch with these denominators. Empty if there is none."""
        ...


def prepared(
    world: World, model: nn.Module, objective: Objective, batches: Sequence[MicroBatch], totals: tuple[int, ...]
) -> Objective:
    """The objective for one global batch. If it is coupled, its shared numbers are computed.

    All workers must call it, with equally many micro-batches.
    """
    if not isinstance(objective, CoupledObjective):
        return objective
    with no_training(model):
        parts = torch.stack([objective.shared(model, batch.content, totals) for batch in batches])
    summed = control.exchange(world, Tally(denominators=(), metrics=control.exact_sums(parts)))
    return objective.given(summed.metrics)


def make_objective(config: job.Objective, reference: Reference) -> Objective:
    """Make the objective of a job. Its class gets `reference` unless its spec has none.

    Raises:
        ObjectiveUnavailable: its class cannot be loaded or made, or contradicts its spec.
    """
    spec = job.spec_of(config)
    assert spec.build is not None  # a user's own loop has no objective
    make = OBJECTIVES.named(spec.kind, spec.build)
    try:
        objective: Objective = make(config) if spec.reference == "none" else make(config, reference)
    except PlannerError:
        raise
    except Exception as error:  # a package's code may raise anything, and a retry would not help
        raise ObjectiveUnavailable(f"objective {spec.kind}: {spec.build}: {type(error).__name__}: {error}") from error
    if isinstance(objective, CoupledObjective) != spec.is_coupled:
        raise ObjectiveUnavailable(
            f"objective {spec.kind}: its spec says is_coupled={spec.is_coupled}, but {spec.build} "
            f"{'lacks' if spec.is_coupled else 'has'} the methods shared, given and remark. Correct one of the two"
        )
    return objective


def check_rows(config: job.Objective, dataset: SampleDataset, order: Order) -> None:
    """Run the objective's own check of the data, if its spec names one.

    Raises:
        DataError: the objective cannot learn from these rows.
        ObjectiveUnavailable: the check cannot be loaded.
    """
    spec = job.spec_of(config)
    if spec.check_rows is not None:
        OBJECTIVES.named(spec.kind, spec.check_rows)(dataset, order)


def denominators(objective: Objective, batches: Sequence[MicroBatch]) -> tuple[int, ...]:
    """The sum of each denominator over micro-batches. Zeros without micro-batches."""
    parts = [objective.denominators(batch) for batch in batches]
    return tuple(sum(part[i] for part in parts) for i in range(objective.num_denominators))


def named_metrics(objective: Objective, values: Sequence[float], totals: Sequence[int]) -> dict[str, float]:
    """The metrics by name, without those that are not finite or whose denominator is zero in this global batch."""
    found = zip(objective.metrics.items(), values, strict=True)
    return {name: value for (name, i), value in found if totals[i] and abs(value) < float("inf")}
