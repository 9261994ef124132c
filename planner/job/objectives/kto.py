"""Kahneman-Tversky optimisation."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import descriptions


class KtoObjective(Objective):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024). It learns from single completions instead of pairs."""

    kind: Literal["kto"] = Field(description="Kahneman-Tversky optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=descriptions.BETA)
    desirable_weight: float = Field(default=1.0, ge=0, le=1000, description="loss weight of desirable completions")
    undesirable_weight: float = Field(default=1.0, ge=0, le=1000, description="loss weight of undesirable completions")
    reference_model: str | None = Field(default=None, min_length=1, description=descriptions.REFERENCE_MODEL)


KTO = ObjectiveSpec(
    config=KtoObjective,
    samples=("feedback",),
    # Log-probabilities of mismatched completions cannot be cached by row, so there is no field `reference`.
    reference="required",
    build="planner.train.objectives.kto:KahnemanTversky",
    is_coupled=True,
    least_batch=2,
    least_batch_because=(
        "its KL baseline pairs every prompt with the completion of another sample of the same global batch"
    ),
    check_rows="planner.train.objectives.kto:require_both_kinds",
    shown={"kl": "kl", "desirable_reward": "desirable", "undesirable_reward": "undesirable"},
)
