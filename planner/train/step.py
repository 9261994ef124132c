"""The heart of an optimizer step: all rounds of one worker, gradients summed exactly over rounds and workers."""

import torch
from torch import nn

from planner.train.batches import MicroBatch
from planner.train.objectives import Objective


def accumulate(
    model: nn.Module, objective: Objective, batches: list[MicroBatch], totals: tuple[int, ...]
) -> tuple[float, int]:
    """Forward and backward over a worker's micro-batches, one per round; every worker calls it with as many.

    `totals` are the objective's denominators over the *whole* global batch. Each micro-batch's loss is divided by
    them and FSDP sums over workers, so what stands in the shards afterwards is the gradient of the mean over the
    global batch, whatever the split. Returns this worker's part of the loss, and the sum of its samples'
    checksums, taken from the very tensors that entered the forward pass.
    """
    parts, check_sum = [], 0
    for number, batch in enumerate(batches, 1):
        model.set_is_last_backward(number == len(batches))  # type: ignore[operator]
        part = objective.loss(model, batch, totals)
        part.backward()  # type: ignore[no-untyped-call]
        parts.append(part.detach())
        check_sum += batch.check_sum()
    # One wait for the device per step, and a float64 sum.
    return float(torch.stack(parts).double().sum()), check_sum
