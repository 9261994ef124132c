"""Log-probabilities of completions under a model, and forward passes without training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.data.samples import NO_LOSS
from planner.train.sample_batches import Sequences


def log_probs(model: nn.Module, sequences: Sequences) -> Tensor:
    """Log-probability of each sequence, `(n,)` float32: the sum over its tokens with loss of log p(token | all before).

    Sequences are computed one by one, so that only one sequence's half-precision logits are copied to float32 at a
    time, besides those that the backward pass keeps.
    """
    device = next(model.parameters()).device
    inputs = sequences.inputs.to(device, non_blocking=True)
    # A model that never gets packed rows need not take documents.
    more = () if sequences.documents is None else (sequences.documents.to(device, non_blocking=True),)
    logits = model(inputs, *more)  # (n, T, V)
    labels = sequences.labels.to(device, non_blocking=True)
    losses = [
        functional.cross_entropy(row.float(), targets, ignore_index=NO_LOSS, reduction="sum")
        for row, targets in zip(logits, labels, strict=True)
    ]
    return -torch.stack(losses)


@contextmanager
def no_training(model: nn.Module) -> Iterator[None]:
    """Turn gradients and dropout off. Forward passes inside do not count as training."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
