"""Identity preference optimisation (Azar et al. 2023, equation 17).

    h    = (log p(chosen) - log p(rejected)) - (log p_ref(chosen) - log p_ref(rejected))
    loss = mean over pairs of (h - 1 / (2 * beta))^2

beta is the paper's tau. The paper and the DPO repository take log-probabilities as sums over a completion's tokens,
TRL and HALOs as means. A completion's reward is beta * (log p - log p_ref).
"""

from torch import Tensor, nn

from planner.job import IpoObjective
from planner.train.objectives.pairs import PairObjective, lengths, of_policy, of_reference
from planner.train.reference.frozen import Reference
from planner.train.sample_batches import PairBatch


class IdentityPreference(PairObjective):
    """The loss of IPO. It always needs a reference."""

    def __init__(self, config: IpoObjective, reference: Reference) -> None:
        self._beta, self._is_mean, self._reference = config.beta, config.log_probs == "mean", reference

    def losses(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The loss of each pair, `(m,)`, and its rewards, `(2, m)`."""
        ratios = of_policy(model, batch) - of_reference(self._reference, model, batch)
        if self._is_mean:
            ratios = ratios / lengths(batch, like=ratios)
        return (ratios[0] - ratios[1] - 1 / (2 * self._beta)).square(), self._beta * ratios
