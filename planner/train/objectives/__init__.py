"""What is minimised. Each objective is one small file with its formula.

An objective declares integer denominators per micro-batch, from labels alone; they are summed over the whole
global batch before the step begins, and its loss is the micro-batch's part of the global mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from planner import job
from planner.job import DpoObjective, IpoObjective, KtoObjective, LmObjective, SftObjective, SimpoObjective
from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.control import Tally
from planner.train.log_probs import measuring
from planner.train.reference.frozen import Reference
from planner.train.world import World


class Objective(Protocol):
    """How a micro-batch becomes its part of the loss."""

    @property
    def num_denominators(self) -> int:
        """1 for most; losses like ORPO's have two."""
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


def ready(
    world: World, model: nn.Module, objective: Objective, batches: Sequence[MicroBatch], totals: tuple[int, ...]
) -> Objective:
    """The objective for these micro-batches of a global batch: with its shared numbers, if it is coupled.

    Every worker calls it, with equally many micro-batches.
    """
    if not isinstance(objective, Coupled):
        return objective
    with measuring(model):
        parts = torch.stack([objective.shared(model, batch.content, totals) for batch in batches])
    summed = control.exchange(world, Tally(denominators=(), metrics=control.exact_sums(parts)))
    return objective.given(summed.metrics)


def make_objective(config: job.Objective, reference: Reference) -> Objective:
    """The objective that a job names; `reference` is not looked at by one that has no use for it."""
    if isinstance(config, LmObjective):
        from planner.train.objectives.lm import LanguageModelling

        return LanguageModelling()
    if isinstance(config, SftObjective):
        from planner.train.objectives.sft import SupervisedFineTuning

        return SupervisedFineTuning(config)
    if isinstance(config, DpoObjective):
        from planner.train.objectives.dpo import DirectPreference

        return DirectPreference(config, reference)
    if isinstance(config, IpoObjective):
        from planner.train.objectives.ipo import IdentityPreference

        return IdentityPreference(config, reference)
    if isinstance(config, SimpoObjective):
        from planner.train.objectives.simpo import SimplePreference

        return SimplePreference(config)
    assert isinstance(config, KtoObjective)  # who has one of his own does not come here
    from planner.train.objectives.kto import KahnemanTversky

    return KahnemanTversky(config, reference)


def denominators(objective: Objective, batches: Sequence[MicroBatch]) -> tuple[int, ...]:
    """Each denominator's sum over micro-batches; zeros for none."""
    parts = [objective.denominators(batch) for batch in batches]
    return tuple(sum(part[i] for part in parts) for i in range(objective.num_denominators))


def named_metrics(objective: Objective, values: Sequence[float], totals: Sequence[int]) -> dict[str, float]:
    """The metrics by name, without those that are of nothing in this global batch, or not finite."""
    found = zip(objective.metrics.items(), values, strict=True)
    return {name: value for (name, i), value in found if totals[i] and abs(value) < float("inf")}
