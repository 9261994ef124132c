"""Next-token prediction."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class LmObjective(Objective):
    """Next-token prediction: the mean cross-entropy over every loss-bearing token of the global batch."""

    kind: Literal["lm"] = Field(default="lm", description="what the loss is")


LM = ObjectiveSpec(
    config=LmObjective,
    data=("text", "jsonl", "tokens"),
    reference="none",
    build="planner.train.objectives.lm:LanguageModelling",
)
