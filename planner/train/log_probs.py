"""What a model makes of completions: the log-probability of each, and a way to ask without training it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.data.samples import NO_LOSS
from planner.train.sample_batches import Sequences


def log_probs(model: nn.Module, sequences: Sequences) -> Tensor:
    """Sum over a sequence's loss-bearing tokens of log p(token | all before it), `(n,)` float32.

    One sequence after another: of half-precision logits, never more than one's are there in float32 besides what the
    backward pass needs anyway.
    """
    device = next(model.parameters()).device
    inputs = sequences.inputs.to(device, non_blocking=True)
    # A model that is never given packed rows need not know of documents.
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
    """Without gradient and without dropout; the forward passes in here are none of training."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
