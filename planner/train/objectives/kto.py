"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, section 4.1), which learns from single completions.

    r    = log p(completion) - log p_ref(completion)
    z0   = max(0, mean over the global batch of log p(y') - log p_ref(y')), without gradient
    loss = mean over the global batch of   desirable_weight   * (1 - sigmoid(beta * (r - z0)))   or, if undesirable,
                                           undesirable_weight * (1 - sigmoid(beta * (z0 - r)))

y' is another sample's completion behind the sample's own prompt: that of the sample at the next position of the same
global batch (for the last sample, the first). z0 estimates how far the policy has moved from its reference, without
beta.

The baselines of HALOs and TRL depend on how the batch was split:

* HALOs pairs samples within a worker's micro-batch (a sample alone is paired with itself, so y' is its own completion).
  It takes the mean over the workers' micro-batches of one round: a pool of G / A samples.
* TRL also pairs within a worker's micro-batch. Its pool is the m * W samples of a round.

Here the pool is the whole global batch, independent of W, m and A. So z0 needs a forward pass of policy and reference
over all micro-batches before the first backward pass, without gradient and dropout. Expect a lower z0 here: in a
smaller pool z0 is noisier, and as it is cut off at zero, noise makes it larger on average.

A global batch needs both kinds, desirable and undesirable. With one kind, nothing balances its loss. The ledger notes
the first such batch, and data of only one kind is refused.
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

# Rows that are read at once. One piece is nearly always enough.
_PIECE = 1024
_SAMPLES, _DESIRABLE, _UNDESIRABLE = 1, 2, 3


class KahnemanTversky:
    """Four denominators: tokens, samples, and samples of either kind."""

    num_denominators = 4
    metrics: Mapping[str, int] = {"kl": _SAMPLES, "desirable_reward": _DESIRABLE, "undesirable_reward": _UNDESIRABLE}

    def __init__(self, config: KtoObjective, reference: Reference, baseline: float = 0.0) -> None:
        self._config, self._reference, self._baseline = config, reference, baseline

    def denominators(self, batch: FeedbackBatch) -> tuple[int, ...]:
        """`(tokens, samples, desirable samples, undesirable samples)`."""
        samples, desirable = len(batch.rows), int(batch.is_desirable.sum())
        return batch.num_tokens, samples, desirable, samples - desirable

    def shared(self, model: nn.Module, batch: FeedbackBatch, totals: tuple[int, ...]) -> Tensor:
        """`(1,)`: this micro-batch's part of z0, before it is cut off at zero."""
        ratios = self._ratios(model, batch, batch.mismatched)
        return ratios.sum().view(1) / max(totals[_SAMPLES], 1)

    def given(self, numbers: tuple[float, ...]) -> "KahnemanTversky":
        """The objective with this z0, cut off at zero. NaN stays NaN, which makes the loss NaN."""
        (mean,) = numbers
        return KahnemanTversky(self._config, self._reference, mean if mean != mean or mean > 0 else 0.0)  # noqa: PLR0124

    def remark(self, totals: tuple[int, ...]) -> str:
        """A note if the global batch lacks one kind of samples."""
        kinds = {"undesirable": totals[_UNDESIRABLE], "desirable": totals[_DESIRABLE]}
        missing = [kind for kind, count in kinds.items() if not count]
        if len(missing) != 1:
            return ""
        return (
            f"none of the {totals[_SAMPLES]} samples of the global batch is {missing[0]}, and kto needs both kinds. "
            "A larger batch.global has both more often (reported once, such steps lack that kind's metric)"
        )

    def loss(self, model: nn.Module, batch: FeedbackBatch, totals: tuple[int, ...]) -> Tensor:
        """`(4,)`: the loss and the metrics. Zeros for a ghost."""
        ratios = self._ratios(model, batch, batch.sequences)
        desirable = batch.is_desirable.to(ratios.device, non_blocking=True)
        beta, baseline = self._config.beta, self._baseline
        gains = self._config.desirable_weight * (1 - torch.sigmoid(beta * (ratios - baseline)))
        pains = self._config.undesirable_weight * (1 - torch.sigmoid(beta * (baseline - ratios)))
        rewards = beta * ratios.detach()
        # `where`, not an index by a mask: a GPU would have to tell its host how many there are.
        nothing = torch.zeros_like(rewards)
        parts = [
            torch.where(desirable, gains, pains).sum() / max(totals[_SAMPLES], 1),
            # The same number for every sample: their mean over the global batch is z0 again, so it is summed like other
            # metrics.
            torch.full_like(rewards, baseline).sum() / max(totals[_SAMPLES], 1),
            torch.where(desirable, rewards, nothing).sum() / max(totals[_DESIRABLE], 1),
            torch.where(desirable, nothing, rewards).sum() / max(totals[_UNDESIRABLE], 1),
        ]
        return torch.stack(parts)

    def _ratios(self, model: nn.Module, batch: FeedbackBatch, sequences: Sequences) -> Tensor:
        """`(m,)`: log p - log p_ref. m = 0 for a ghost."""
        ratios = log_probs(model, sequences) - self._reference.log_probs(model, sequences, batch.rows)
        return ratios[: len(batch.rows)]


def require_both_kinds(dataset: SampleDataset, order: Order) -> None:
    """Read training rows, in the order of the first epoch, until both kinds were seen.

    Raises:
        DataError: all rows are of one kind.
    """
    seen = set[bool]()
    for start in range(0, order.num_samples, _PIECE):
        for row in order.rows(start, min(start + _PIECE, order.num_samples)):
            seen.add(cast("Feedback", dataset.sample(int(row))).is_desirable)
            if len(seen) > 1:
                return
    missing = "undesirable" if True in seen else "desirable"
    raise DataError(
        f"none of the {order.num_samples} rows to train on is {missing}, and kto needs both kinds. Add rows of the "
        "other kind, or train on these with objective: sft"
    )
