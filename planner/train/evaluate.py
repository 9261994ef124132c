"""The held-out loss: the exact mean per token over all held-out samples, at any world size."""

import torch
from torch import nn

from planner.plan import Plan
from planner.train import control
from planner.train.batches import Loader
from planner.train.control import Tally
from planner.train.objectives import Objective, denominators
from planner.train.world import World


def evaluate(world: World, plan: Plan, model: nn.Module, objective: Objective, loader: Loader) -> tuple[float, int]:
    """Mean loss and number of tokens. `plan` has all held-out samples as its global batch.

    Workers without a sample of their own run ghosts: FSDP gathers weights in a forward pass, and that takes all.

    Raises:
        PlannerError: on every worker, if any of them cannot read its samples.
    """
    batches = world.agree(loader.load_held_out)
    totals = control.exchange(world, Tally(denominators=denominators(objective, batches)))
    model.eval()
    with torch.no_grad():
        parts = [objective.loss(model, batch, totals.denominators) for batch in batches]
    model.train()
    part = control.exact_sum(torch.stack(parts))
    zeros = (0,) * objective.num_denominators
    summed = control.exchange(world, Tally(denominators=zeros, loss=part, samples=sum(len(b.rows) for b in batches)))
    if summed.samples != plan.global_batch:
        raise AssertionError(f"evaluated {summed.samples} of {plan.global_batch} held-out samples")
    return summed.loss, totals.denominators[0]
