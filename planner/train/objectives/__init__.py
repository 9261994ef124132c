"""What is minimised. Each objective is one small file with its formula.

An objective declares integer denominators per micro-batch, from labels alone; they are summed over the whole
global batch before the step begins, and its loss is the micro-batch's part of the global mean.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from planner import job
from planner.data.base import SampleDataset
from planner.errors import ObjectiveError, PlannerError
from planner.order.order import Order
from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.control import Tally
from planner.train.log_probs import no_training
from planner.train.reference.frozen import Reference
from planner.train.world import World


class Objective(Protocol):
    """How a micro-batch becomes its part of the loss."""

    @property
    def num_denominators(self) -> int:
        """How many sums a step needs before its loss: 1 for `lm`, 2 for most pairs (tokens, pairs), 3 for `orpo`."""
        ...

    @property
    def metrics(self) -> Mapping[str, int]:
        """What is measured besides the loss: name -> which denominator its parts are divided by."""
        ...

    def denominators(self, batch: Any) -> tuple[int, ...]:
        """This micro-batch's part of each denominator; a ghost's are zero.

        The first one is what the ledger has for the step's tokens, whether the loss is divided by it or not.
        """
        ...

    def loss(self, model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """A scalar in float32 that, summed over all micro-batches of the step, is the loss of the global batch.

        With metrics, `(1 + len(metrics),)`: their parts stand behind it and bear no gradient.
        """
        ...


@runtime_checkable
class Coupled(Objective, Protocol):
    """Whose loss of one sample depends on numbers that all samples of the global batch decide together.

    They are found in forward passes without gradient, before the first backward pass of the step, and added up
    exactly: so they do not depend on the split.
    """

    def shared(self, model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """This micro-batch's part of each number, `(k,)`; they are summed. A ghost's are zero."""
        ...

    def given(self, numbers: tuple[float, ...]) -> Objective:
        """The objective for the batch that these are the numbers of."""
        ...

    def remark(self, totals: tuple[int, ...]) -> str:
        """What a person will want to know of a global batch; empty if nothing."""
        ...


def prepared(
    world: World, model: nn.Module, objective: Objective, batches: Sequence[MicroBatch], totals: tuple[int, ...]
) -> Objective:
    """The objective for these micro-batches of a global batch: with its shared numbers, if it is coupled.

    Every worker calls it, with equally many micro-batches.
    """
    if not isinstance(objective, Coupled):
        return objective
    with no_training(model):
        parts = torch.stack([objective.shared(model, batch.content, totals) for batch in batches])
    summed = control.exchange(world, Tally(denominators=(), metrics=control.exact_sums(parts)))
    return objective.given(summed.metrics)


def make_objective(config: job.Objective, reference: Reference) -> Objective:
    """The objective that a job names. One without a reference is made without it.

    Raises:
        ObjectiveError: its class cannot be loaded or made, or is not what its spec says.
    """
    spec = job.spec_of(config)
    assert spec.build is not None  # a user's own loop does not come here
    make = _named(spec, spec.build)
    try:
        objective: Objective = make(config) if spec.reference == "none" else make(config, reference)
    except PlannerError:
        raise
    except Exception as error:  # whatever a package's code raises: trying again would not mend it
        raise ObjectiveError(f"objective {spec.kind}: {spec.build}: {type(error).__name__}: {error}") from error
    if isinstance(objective, Coupled) != spec.is_coupled:
        raise ObjectiveError(
            f"objective {spec.kind}: its spec says is_coupled={spec.is_coupled}, but {spec.build} "
            f"{'lacks' if spec.is_coupled else 'has'} the methods shared, given and remark; correct one of the two"
        )
    return objective


def check_rows(config: job.Objective, dataset: SampleDataset, order: Order) -> None:
    """Look for what an objective cannot learn from, where its spec names such a check.

    Raises:
        DataError: the rows are wrong.
        ObjectiveError: the check cannot be loaded.
    """
    spec = job.spec_of(config)
    if spec.check_rows is not None:
        _named(spec, spec.check_rows)(dataset, order)


def _named(spec: job.ObjectiveSpec, name: str) -> Any:
    """What `module:name` names, imported now: it may need torch.

    Raises:
        ObjectiveError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a package's code raises
        raise ObjectiveError(f"objective {spec.kind}: cannot load {name}: {type(error).__name__}: {error}") from error


def denominators(objective: Objective, batches: Sequence[MicroBatch]) -> tuple[int, ...]:
    """Each denominator's sum over micro-batches; zeros for none."""
    parts = [objective.denominators(batch) for batch in batches]
    return tuple(sum(part[i] for part in parts) for i in range(objective.num_denominators))


def named_metrics(objective: Objective, values: Sequence[float], totals: Sequence[int]) -> dict[str, float]:
    """The metrics by name, without those that are of nothing in this global batch, or not finite."""
    found = zip(objective.metrics.items(), values, strict=True)
    return {name: value for (name, i), value in found if totals[i] and abs(value) < float("inf")}
