"""Evaluation: exact means of loss and metrics over all held-out samples, at any world size."""

from dataclasses import dataclass

import torch
from torch import nn

from planner.plan import Plan
from planner.train import control
from planner.train.batches import Loader
from planner.train.control import Tally
from planner.train.log_probs import no_training
from planner.train.objectives import Objective, denominators, named_metrics, prepared
from planner.train.world import World


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The means of loss and metrics over the held-out samples."""

    loss: float
    metrics: dict[str, float]
    tokens: int


def evaluate(world: World, plan: Plan, model: nn.Module, objective: Objective, loader: Loader) -> Evaluation:
    """Compute loss and metrics of all held-out samples, which must be the global batch of `plan`.

    Workers without samples run ghosts, because FSDP needs every worker in a forward pass.

    Raises:
        PlannerError: on every worker, if any of them cannot read its samples.
    """
    batches = world.agree(loader.load_held_out)
    # First the counts of all workers: each micro-batch's loss is divided by the global ones, never averaged again.
    totals = control.exchange(world, Tally(denominators=denominators(objective, batches))).denominators
    objective = prepared(world, model, objective, batches, totals)
    with no_training(model):
        parts = [objective.loss(model, batch, totals).view(-1) for batch in batches]
    loss, *metrics = control.exact_sums(torch.stack(parts))
    samples = sum(len(batch.rows) for batch in batches)
    summed = control.exchange(world, Tally(denominators=(), loss=loss, metrics=tuple(metrics), samples=samples))
    if summed.samples != plan.global_batch:
        raise AssertionError(f"evaluated {summed.samples} of {plan.global_batch} held-out samples")
    return Evaluation(loss=summed.loss, metrics=named_metrics(objective, summed.metrics, totals), tokens=totals[0])
