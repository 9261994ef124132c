"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, section 4.1), of completions without partners.

    r    = log p(completion) - log p_ref(completion)
    z0   = max(0, mean over the global batch of log p(y') - log p_ref(y')), without gradient
    loss = mean over the global batch of   desirable_weight   * (1 - sigmoid(beta * (r - z0)))   or, if undesirable,
                                           undesirable_weight * (1 - sigmoid(beta * (z0 - r)))

y' is another sample's completion behind the sample's own prompt: that of the sample at the next position of the same
global batch, the last one's being the first's. z0 estimates beta-free how far the policy has moved from its reference.

It differs from both systems that people bring this from, whose baseline depends on how the batch was split:

* HALOs pairs within a worker's micro-batch (alone in one, a sample is paired with itself, so y' is its own
  completion), and takes the mean over the workers' micro-batches of one round: a pool of B / A samples.
* TRL pairs within a worker's micro-batch, too, and its pool is the round's m * W samples.

Here the pool is the whole global batch, whatever W, m and A: so z0 takes a forward pass without gradient of policy
and reference over all micro-batches before the first backward pass, without dropout. A noisier z0 of a smaller pool
is larger on average, since it is cut off at zero: expect it lower here than there.

A global batch wants both kinds: with one kind alone, the loss is that kind's and nothing holds the other side. The
ledger says so the first time; data of one kind alone is refused.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from planner.data.base import SampleDataset
from planner.data.samples import Feedback
from planner.errors import DataError
from planner.job import KtoObjective
from planner.order.order import Order
from planner.train.log_probs import log_probs
from planner.train.reference.frozen import Reference
from planner.train.sample_batches import FeedbackBatch, Sequences

# Rows looked at in one piece; nearly always, one is enough.
_PIECE = 1024
_SAMPLES, _DESIRABLE, _UNDESIRABLE = 1, 2, 3


class KahnemanTversky:
    """Four denominators: tokens, samples, and samples of either kind."""

    num_denominators = 4
    metrics: Mapping[str, int] = {"kl": _SAMPLES, "desirable_reward": _DESIRABLE, "undesirable_reward": _UNDESIRABLE}

    def __init__(self, config: KtoObjective, reference: Reference, baseline: float = 0.0) -> None:
        self._config, self._reference, self._baseline = config, reference, baseline

    def denominators(self, batch: FeedbackBatch) -> tuple[int, ...]:
        """`(tokens, samples, desirable ones, undesirable ones)`."""
        samples, desirable = len(batch.rows), int(batch.is_desirable.sum())
        return batch.num_tokens, samples, desirable, samples - desirable

    def shared(self, model: nn.Module, batch: FeedbackBatch, totals: tuple[int, ...]) -> Tensor:
        """`(1,)`: this micro-batch's part of z0 before it is cut off."""
        ratios = self._ratios(model, batch, batch.mismatched)
        return ratios.sum().view(1) / max(totals[_SAMPLES], 1)

    def given(self, numbers: tuple[float, ...]) -> "KahnemanTversky":
        """With z0; not a number stays what it is, and makes the loss so."""
        (mean,) = numbers
        return KahnemanTversky(self._config, self._reference, mean if mean != mean or mean > 0 else 0.0)  # noqa: PLR0124

    def remark(self, totals: tuple[int, ...]) -> str:
        """Whether one kind is missing."""
        kinds = {"undesirable": totals[_UNDESIRABLE], "desirable": totals[_DESIRABLE]}
        missing = [kind for kind, count in kinds.items() if not count]
        if len(missing) != 1:
            return ""
        return (
            f"none of the {totals[_SAMPLES]} samples of the global batch is {missing[0]}, and kto needs both kinds; "
            "a larger batch.global has them more often (told once; such steps have no metric of that kind)"
        )

    def loss(self, model: nn.Module, batch: FeedbackBatch, totals: tuple[int, ...]) -> Tensor:
        """`(4,)`: the loss and the metrics; zero for a ghost, whose sums are over no sample."""
        ratios = self._ratios(model, batch, batch.sequences)
        desirable = batch.is_desirable.to(ratios.device, non_blocking=True)
        beta, baseline = self._config.beta, self._baseline
        gains = self._config.desirable_weight * (1 - torch.sigmoid(beta * (ratios - baseline)))
        pains = self._config.undesirable_weight * (1 - torch.sigmoid(beta * (baseline - ratios)))
        rewards = beta * ratios.detach()
        nothing = torch.zeros_like(rewards)
        parts = [
            torch.where(desirable, gains, pains).sum() / max(totals[_SAMPLES], 1),
            torch.full_like(rewards, baseline).sum() / max(totals[_SAMPLES], 1),
            torch.where(desirable, rewards, nothing).sum() / max(totals[_DESIRABLE], 1),
            torch.where(desirable, nothing, rewards).sum() / max(totals[_UNDESIRABLE], 1),
        ]
        return torch.stack(parts)

    def _ratios(self, model: nn.Module, batch: FeedbackBatch, sequences: Sequences) -> Tensor:
        """`(m,)`: log p - log p_ref; m = 0 for a ghost."""
        ratios = log_probs(model, sequences) - self._reference.log_probs(model, sequences, batch.rows)
        return ratios[: len(batch.rows)]


def require_both_kinds(dataset: SampleDataset, order: Order) -> None:
    """Look at training rows, in the order of the first epoch, until one of either kind was seen.

    Raises:
        DataError: all are of one kind.
    """
    seen = set[bool]()
    for start in range(0, order.num_samples, _PIECE):
        for row in order.rows(start, min(start + _PIECE, order.num_samples)):
            seen.add(cast("Feedback", dataset.sample(int(row))).is_desirable)
            if len(seen) > 1:
                return
    missing = "undesirable" if True in seen else "desirable"
    raise DataError(
        f"none of the {order.num_samples} rows to train on is {missing}; kto needs both kinds: give rows of the other "
        "kind, too, or train on these with objective: sft"
    )
