"""Next-token prediction."""

from typing import ClassVar, Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class LmObjective(Objective):
    """Next-token prediction: the mean cross-entropy over all tokens of the global batch that have a loss."""

    kind: Literal["lm"] = Field(default="lm", description="next-token prediction")
    mean_over: ClassVar[Literal["tokens"]] = "tokens"
    """as `sft` has it"""


LM = ObjectiveSpec(
    config=LmObjective,
    samples=("texts",),
    reference="none",
    build="planner.train.objectives.next_token:NextToken",
)
