"""Supervised fine-tuning."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class SftObjective(Objective):
    """Supervised fine-tuning: the cross-entropy of completions."""

    kind: Literal["sft"] = Field(description="supervised fine-tuning")
    mean_over: Literal["tokens", "samples"] = Field(
        default="tokens",
        description="tokens: every token of the global batch weighs the same; samples: sums of tokens, a mean of those",
    )


SFT = ObjectiveSpec(
    config=SftObjective,
    data=("chat",),
    reference="none",
    build="planner.train.objectives.sft:SupervisedFineTuning",
)
