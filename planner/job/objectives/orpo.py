"""Odds ratio preference optimisation."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec
from planner.job.objectives import descriptions


class OrpoObjective(Objective):
    """Odds ratio preference optimisation (Hong et al. 2024), without a reference."""

    kind: Literal["orpo"] = Field(description="odds ratio preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description="weight of the odds ratio term, the paper's lambda")


ORPO = ObjectiveSpec(
    config=OrpoObjective,
    samples=("pairs",),
    reference="none",
    build="planner.train.objectives.orpo:OddsRatioPreference",
    shown={**descriptions.PAIR_METRICS, "chosen_nll": "nll"},
)
