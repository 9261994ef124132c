"""Log-probabilities of completions under a model, and forward passes without training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from planner.data.samples import NO_LOSS
from planner.train.models.document_attention import documents_on
from planner.train.models.head import Targets, moved
from planner.train.sample_batches import Sequences


def log_probs(model: nn.Module, sequences: Sequences) -> Tensor:
    """Log-probability of each sequence, `(n,)` float32: the sum over its tokens with loss of log p(token | all before).

    For objectives that are linear in it, `log_prob_sum` is faster.
    """
    found = _computed(model, sequences.inputs, sequences.labels, sequences.documents, is_summed=False)
    parts = torch.split(found, sequences.loss_tokens().tolist())
    return torch.stack([part.sum() for part in parts])


def log_prob_sum(model: nn.Module, inputs: Tensor, labels: Tensor, documents: Tensor | None = None) -> Tensor:
    """The sum of log p(token | all before it) over all tokens with loss, a float32 scalar.

    Args:
        model: planner's or transformers', sharded or not.
        inputs: `(n, T)` int64, on the CPU.
        labels: `(n, T)` int64, on the CPU, `NO_LOSS` at tokens without loss.
        documents: `(n, T)` int64, on the CPU, of packed rows.
    """
    return _computed(model, inputs, labels, documents, is_summed=True)


def _computed(model: nn.Module, inputs: Tensor, labels: Tensor, documents: Tensor | None, *, is_summed: bool) -> Tensor:
    device, flat = next(model.parameters()).device, labels.flatten()
    places = (flat != NO_LOSS).nonzero()[:, 0]  # on the CPU, so that no GPU is waited for
    targets = Targets(
        places=moved(places, device),
        tokens=moved(flat[places], device),
        is_summed=is_summed,
    )
    apart = None if documents is None else documents_on(device, documents)
    found: Tensor = model(inputs.to(device, non_blocking=True), apart, targets)
    return found


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
