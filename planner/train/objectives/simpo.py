"""Simple preference optimisation (Meng et al. 2024, equation 6), without a reference.

    reward = beta * mean over the completion's tokens of log p(token | all before it)
    loss   = mean over pairs of -log sigmoid(reward(chosen) - reward(rejected) - gamma)

gamma is given as its ratio to beta, as HALOs and the paper's own configurations do.
"""

from torch import Tensor, nn
from torch.nn import functional

from planner.job import SimpoObjective
from planner.train.objectives.pairs import PairObjective, lengths, of_policy
from planner.train.sample_batches import PairBatch


class SimplePreference(PairObjective):
    """The loss of SimPO. It needs no reference."""

    def __init__(self, config: SimpoObjective) -> None:
        self._beta, self._gamma = config.beta, config.beta * config.gamma_beta_ratio

    def losses(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The loss of each pair, `(m,)`, and its rewards, `(2, m)`."""
        found = of_policy(model, batch)
        rewards = self._beta * found / lengths(batch, like=found)
        return -functional.logsigmoid(rewards[0] - rewards[1] - self._gamma), rewards
