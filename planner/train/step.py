"""The heart of an optimizer step: all rounds of one worker, gradients summed exactly over rounds and workers."""

import hashlib

import torch
from torch import nn

from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.gradient_sums import GradientSums
from planner.train.objectives import Objective


def accumulate(
    model: nn.Module,
    objective: Objective,
    sums: GradientSums,
    batches: list[MicroBatch],
    totals: tuple[int, ...],
    seed: int,
) -> tuple[float, int]:
    """Forward and backward over a worker's micro-batches, one per round; every worker calls it with as many.

    `totals` are the objective's denominators over the *whole* global batch. Each micro-batch's loss is divided by
    them and gradients are summed over workers, so what stands in the shards afterwards is the gradient of the mean
    over the global batch, whatever the split. Returns this worker's part of the loss, and the sum of its samples'
    checksums, taken from the very tensors that entered the forward pass.
    """
    sums.begin()
    parts, check_sum = [], 0
    for number, batch in enumerate(batches, 1):
        if number == len(batches):
            sums.last_round()
        model.set_is_last_backward(number == len(batches))  # type: ignore[operator]
        seed_randomness(seed, batch.position)
        part = objective.loss(model, batch, totals)
        part.backward()  # type: ignore[no-untyped-call]
        parts.append(part.detach())
        check_sum += batch.check_sum()
    # One wait for the device per step.
    return control.exact_sum(torch.stack(parts)), check_sum


def seed_randomness(seed: int, position: int) -> None:
    """Dropout's key is the run's seed and the position of the micro-batch's first sample, never the worker.

    The position grows from step to step, so no mask comes twice; and it does not depend on who computes it.
    """
    words = f"dropout {seed} {position}".encode()
    torch.manual_seed(int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little"))
