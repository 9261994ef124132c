"""Next-token prediction.

    loss = (1 / N) * sum over samples i and positions t of -log p(x[i, t+1] | x[i, :t+1])

N is the number of tokens with loss in the whole global batch, so every token weighs the same. (A mean of the means of
micro-batches would give more weight to tokens of short micro-batches.)
"""

from collections.abc import Mapping

from torch import Tensor, nn

from planner.job import LmObjective
from planner.train.batches import TokenBatch
from planner.train.log_probs import log_prob_sum
from planner.train.sample_batches import SampleBatch


class LanguageModelling:
    """One denominator: tokens with loss."""

    num_denominators = 1
    metrics: Mapping[str, int] = {}

    def __init__(self, config: LmObjective) -> None:
        del config  # it has no settings

    def denominators(self, batch: TokenBatch | SampleBatch) -> tuple[int, ...]:
        """`(tokens,)`."""
        return (batch.num_tokens,)

    def loss(self, model: nn.Module, batch: TokenBatch | SampleBatch, totals: tuple[int, ...]) -> Tensor:
        """The sum over all tokens, divided by N. For a ghost, zero with a zero gradient."""
        if isinstance(batch, SampleBatch):
            texts = batch.sequences
            total = log_prob_sum(model, texts.inputs, texts.labels, texts.documents)
        else:
            total = log_prob_sum(model, batch.inputs, batch.labels)
        # `max`: a global batch may have no token with loss, and then every part of the sum is zero.
        return -total / max(totals[0], 1)
