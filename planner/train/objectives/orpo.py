"""Odds ratio preference optimisation (Hong et al. 2024, equations 4 to 7), without a reference.

    a    = mean over the completion's tokens of log p(token | all before it)
    odds = exp(a) / (1 - exp(a))
    loss = -(1 / N) * sum over chosen completions and their tokens of log p(token | all before it)
           - beta * mean over pairs of log sigmoid(log odds(chosen) - log odds(rejected))

N is the number of tokens with loss in the chosen completions of the whole global batch. The second mean is over all
pairs of the global batch. beta is the paper's lambda. A completion's reward is beta * a, as in TRL.

The first term is the cross-entropy of the completion, given the prompt. TRL (`ORPOTrainer.concatenated_forward`) and
the authors' code (xfactlab/orpo, `src/orpo_trainer.py`, unless `disable_prompt_loss`) also count the prompt's tokens.
Both take the mean of the means of micro-batches, which depends on the split.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.job.objectives.orpo import OrpoObjective
from planner.train.objectives.pairs import lengths, of_policy
from planner.train.sample_batches import PairBatch

_PAIRS, _CHOSEN_TOKENS = 1, 2


class OddsRatioPreference:
    """Three denominators: tokens, pairs, and tokens of chosen completions."""

    num_denominators = 3
    metrics: Mapping[str, int] = {
        "reward_margin": _PAIRS,
        "reward_accuracy": _PAIRS,
        "chosen_reward": _PAIRS,
        "rejected_reward": _PAIRS,
        "chosen_nll": _CHOSEN_TOKENS,
    }

    def __init__(self, config: OrpoObjective) -> None:
        self._beta = config.beta

    def denominators(self, batch: PairBatch) -> tuple[int, ...]:
        """`(tokens, pairs, tokens of chosen completions)`."""
        chosen_tokens = int(batch.sequences.loss_tokens()[: len(batch.rows)].sum())
        return batch.num_tokens, len(batch.rows), chosen_tokens

    def loss(self, model: nn.Module, batch: PairBatch, totals: tuple[int, ...]) -> Tensor:
        """`(6,)`: the loss and the metrics. Zeros for a ghost."""
        sums = of_policy(model, batch)  # (2, m): chosen, rejected
        means = sums / lengths(batch, like=sums)
        log_odds = _log_odds(means)
        preference = -self._beta * functional.logsigmoid(log_odds[0] - log_odds[1])
        nll = -sums[0].sum() / max(totals[_CHOSEN_TOKENS], 1)
        chosen, rejected = self._beta * means.detach()
        of_pairs = [preference, chosen - rejected, (chosen > rejected).float(), chosen, rejected]
        parts = torch.stack([each.sum() for each in of_pairs]) / max(totals[_PAIRS], 1)
        return torch.cat([(parts[0] + nll).view(1), parts[1:], nll.detach().view(1)])


def _log_odds(log_p: Tensor) -> Tensor:
    """log(p / (1 - p)). p is kept at least a float32 step below 1, where the value would be infinite."""
    log_p = log_p.clamp(max=-torch.finfo(torch.float32).eps)
    return log_p - torch.log(-torch.expm1(log_p))
