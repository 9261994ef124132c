"""Direct preference optimisation (Rafailov et al. 2023, equation 7), conservative with label smoothing.

    h    = (log p(chosen) - log p(rejected)) - (log p_ref(chosen) - log p_ref(rejected))
    loss = mean over pairs of -(1 - s) * log sigmoid(beta * h) - s * log sigmoid(-beta * h)

Log-probabilities are sums over a completion's tokens. s is the label smoothing (Mitchell 2023, "A note on DPO with
noisy preferences"). A completion's reward is beta * (log p - log p_ref).
"""

from torch import Tensor, nn
from torch.nn import functional

from planner.job import DpoObjective
from planner.train.objectives.pairs import PairObjective, of_policy, of_reference
from planner.train.reference.frozen import Reference
from planner.train.sample_batches import PairBatch


class DirectPreference(PairObjective):
    """The loss of DPO. With a uniform reference, rewards are beta * log p."""

    def __init__(self, config: DpoObjective, reference: Reference) -> None:
        self._beta, self._smoothing, self._reference = config.beta, config.label_smoothing, reference

    def losses(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The loss of each pair, `(m,)`, and its rewards, `(2, m)`."""
        rewards = self._beta * (of_policy(model, batch) - of_reference(self._reference, model, batch))
        margins = rewards[0] - rewards[1]
        right, wrong = functional.logsigmoid(margins), functional.logsigmoid(-margins)
        return -(1 - self._smoothing) * right - self._smoothing * wrong, rewards
