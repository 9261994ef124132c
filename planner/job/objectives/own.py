"""The objective of a user's own training loop."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class OwnObjective(Objective):
    """The loss that your own training loop computes (the train function of `data.path`)."""

    kind: Literal["own"] = Field(description="computed by your own training loop")


OWN = ObjectiveSpec(config=OwnObjective, samples=("own",), reference="none", build=None)
