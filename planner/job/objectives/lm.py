"""Next-token prediction."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class LmObjective(Objective):
    """Next-token prediction: the mean cross-entropy over all tokens of the global batch that have a loss."""

    kind: Literal["lm"] = Field(default="lm", description="next-token prediction")


LM = ObjectiveSpec(
    config=LmObjective,
    data=("text", "jsonl", "tokens"),
    reference="none",
    build="planner.train.objectives.lm:LanguageModelling",
)
