"""Simple preference optimisation."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import descriptions


class SimpoObjective(Objective):
    """Simple preference optimisation (Meng et al. 2024), without a reference."""

    kind: Literal["simpo"] = Field(description="simple preference optimisation")
    beta: float = Field(default=2.0, gt=0, le=1000, description="factor of the difference of mean log-probabilities")
    gamma_beta_ratio: float = Field(default=0.5, ge=0, le=1000, description="target margin, divided by beta")


SIMPO = ObjectiveSpec(
    config=SimpoObjective,
    samples=("pairs",),
    reference="none",
    build="planner.train.objectives.simpo:SimplePreference",
    shown=descriptions.PAIR_METRICS,
)
