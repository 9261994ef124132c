"""Direct preference optimisation."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec, ReferenceSource
from planner.job.objectives import descriptions


class DpoObjective(Objective):
    """Direct preference optimisation (Rafailov et al. 2023). With label smoothing, it is conservative DPO."""

    kind: Literal["dpo"] = Field(description="direct preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=descriptions.BETA)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="assumed share of wrong labels")
    reference: ReferenceSource = Field(default="model", description=f"{descriptions.REFERENCE}. none means uniform")
    reference_model: str | None = Field(default=None, min_length=1, description=descriptions.REFERENCE_MODEL)


DPO = ObjectiveSpec(
    config=DpoObjective,
    samples=("pairs",),
    reference="optional",
    build="planner.train.objectives.dpo:DirectPreference",
    shown=descriptions.PAIR_METRICS,
)
