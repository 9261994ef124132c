"""Identity preference optimisation."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import descriptions


class IpoObjective(Objective):
    """Identity preference optimisation (Azar et al. 2023)."""

    kind: Literal["ipo"] = Field(description="identity preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=descriptions.BETA)
    log_probs: Literal["mean", "sum"] = Field(
        default="mean",
        description="reduction over a completion's tokens: mean as in TRL and HALOs, sum as in the DPO repository",
    )
    reference: Literal["model", "cached"] = Field(default="model", description=descriptions.REFERENCE)
    reference_model: str | None = Field(default=None, min_length=1, description=descriptions.REFERENCE_MODEL)


IPO = ObjectiveSpec(
    config=IpoObjective,
    samples=("pairs",),
    reference="required",
    build="planner.train.objectives.ipo:IdentityPreference",
    shown=descriptions.PAIR_METRICS,
)
