"""Supervised fine-tuning: the cross-entropy of completions.

    loss = (1 / N) * sum over samples i and loss-bearing positions t of -log p(y[i, t] | everything before it)

N counts the loss-bearing tokens of the whole global batch, as TRL does (`num_items_in_batch`), or its samples: then a
long completion weighs more, as in the DPO repository (`trainers.py`: sums of tokens, a mean of those). HALOs takes
the mean over the tokens of each micro-batch and a mean of those, which depends on the split: it is not offered.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from planner.job import SftObjective
from planner.train.log_probs import log_probs
from planner.train.sample_batches import SampleBatch


class SupervisedFineTuning:
    """Two denominators: loss-bearing tokens and samples."""

    num_denominators = 2
    metrics: Mapping[str, int] = {}

    def __init__(self, config: SftObjective) -> None:
        self._mean_over = 0 if config.mean_over == "tokens" else 1

    def denominators(self, batch: SampleBatch) -> tuple[int, ...]:
        """`(tokens, samples)`."""
        return batch.num_tokens, len(batch.rows)

    def loss(self, model: nn.Module, batch: SampleBatch, totals: tuple[int, ...]) -> Tensor:
        """The sum over all tokens, divided; zero with a zero gradient for a ghost, which has none."""
        return -log_probs(model, batch.sequences).sum() / max(totals[self._mean_over], 1)
