"""Next-token prediction.

    loss = (1 / N) * sum over samples i and positions t of -log p(x[i, t+1] | x[i, :t+1])

N is the number of tokens with loss in the whole global batch, so every token weighs the same. (A mean of the means of
micro-batches would give more weight to tokens of short micro-batches.)
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from planner.data.samples import NO_LOSS
from planner.job import LmObjective
from planner.train.batches import TokenBatch


class LanguageModelling:
    """One denominator: tokens with loss."""

    num_denominators = 1
    metrics: Mapping[str, int] = {}

    def __init__(self, config: LmObjective) -> None:
        del config  # it has no settings

    def denominators(self, batch: TokenBatch) -> tuple[int, ...]:
        """`(tokens,)`."""
        return (batch.num_tokens,)

    def loss(self, model: nn.Module, batch: TokenBatch, totals: tuple[int, ...]) -> Tensor:
        """`sum(losses) / totals[0]`. For a ghost, zero with a zero gradient."""
        device = next(model.parameters()).device
        logits = model(batch.inputs.to(device, non_blocking=True))  # (m, T, V)
        labels = batch.labels.to(device, non_blocking=True)
        losses = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=NO_LOSS, reduction="sum"
        )
        return losses / max(totals[0], 1)
