"""Next-token prediction (`lm`) and supervised fine-tuning (`sft`): the cross-entropy of tokens that have loss.

    loss = (1 / N) * sum over samples i and positions t with loss of -log p(y[i, t] | everything before it)

With `mean_over: tokens`, which `lm` always has, N is the number of tokens with loss in the whole global batch, as in
TRL (`num_items_in_batch`). With `mean_over: samples`, N is the number of samples, so long completions weigh more, as in
the DPO repository (`trainers.py`). The mean of the means of micro-batches, as in HALOs, depends on the split and is not
offered.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from planner.job import LmObjective, SftObjective
from planner.train.log_probs import log_prob_sum
from planner.train.sample_batches import SampleBatch


class NextToken:
    """Two denominators: tokens with loss, and samples."""

    num_denominators = 2
    metrics: Mapping[str, int] = {}

    def __init__(self, config: LmObjective | SftObjective) -> None:
        self._mean_over = 0 if config.mean_over == "tokens" else 1

    def denominators(self, batch: SampleBatch) -> tuple[int, ...]:
        """`(tokens, samples)`."""
        return batch.num_tokens, len(batch.rows)

    def loss(self, model: nn.Module, batch: SampleBatch, totals: tuple[int, ...]) -> Tensor:
        """The sum over all tokens, divided by N. For a ghost, zero with a zero gradient."""
        texts = batch.sequences
        total = log_prob_sum(model, texts.inputs, texts.labels, texts.documents)
        return -total / max(totals[self._mean_over], 1)
