"""The base of objectives over pairs: denominators, log-probabilities and metrics."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from planner.train.log_probs import log_probs
from planner.train.reference.frozen import Reference
from planner.train.sample_batches import PairBatch

_PAIRS = 1


class PairObjective(Protocol):
    """An objective whose loss is the mean, over the pairs of the global batch, of a loss of each pair."""

    num_denominators: int = 2
    metrics: Mapping[str, int] = {
        "reward_margin": _PAIRS,
        "reward_accuracy": _PAIRS,
        "chosen_reward": _PAIRS,
        "rejected_reward": _PAIRS,
    }

    def losses(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The loss of each pair, `(m,)`, and the rewards of its chosen and rejected completions, `(2, m)`."""
        ...

    def denominators(self, batch: PairBatch) -> tuple[int, ...]:
        """`(tokens, pairs)`."""
        return batch.num_tokens, len(batch.rows)

    def loss(self, model: nn.Module, batch: PairBatch, totals: tuple[int, ...]) -> Tensor:
        """`(5,)`: the loss and the metrics. Zeros for a ghost."""
        losses, rewards = self.losses(model, batch)
        chosen, rejected = rewards.detach()
        sums = [losses, chosen - rejected, (chosen > rejected).float(), chosen, rejected]
        return torch.stack([each.sum() for each in sums]) / max(totals[_PAIRS], 1)


def of_policy(model: nn.Module, batch: PairBatch) -> Tensor:
    """`(2, m)`: the policy's log-probabilities of chosen and rejected completions. m = 0 for a ghost."""
    return _by_pair(log_probs(model, batch.sequences), batch)


def of_reference(reference: Reference, model: nn.Module, batch: PairBatch) -> Tensor:
    """`(2, m)`: the reference's log-probabilities of chosen and rejected completions. m = 0 for a ghost."""
    return _by_pair(reference.log_probs(model, batch.sequences, batch.rows), batch)


def lengths(batch: PairBatch, like: Tensor) -> Tensor:
    """`(2, m)`: the numbers of tokens with loss in chosen and rejected completions, with the type of `like`."""
    return _by_pair(batch.sequences.loss_tokens(), batch).to(like)


def _by_pair(of_sequences: Tensor, batch: PairBatch) -> Tensor:
    return of_sequences.view(2, -1)[:, : len(batch.rows)]
