"""Supervised fine-tuning."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class SftObjective(Objective):
    """Supervised fine-tuning: the cross-entropy of completions."""

    kind: Literal["sft"] = Field(description="supervised fine-tuning")
    mean_over: Literal["tokens", "samples"] = Field(
        default="tokens",
        description="the loss is the mean over all tokens of the global batch, or the mean of the samples' token sums",
    )


SFT = ObjectiveSpec(
    config=SftObjective,
    samples=("texts",),
    reference="none",
    build="planner.train.objectives.next_token:NextToken",
)
