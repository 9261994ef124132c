"""The loss of a user's own loop."""

from typing import Literal

from pydantic import Field

from planner.job.objective import Objective, ObjectiveSpec


class OwnObjective(Objective):
    """Computed by the train function of `data.path`."""

    kind: Literal["own"] = Field(description="computed by your own loop")


OWN = ObjectiveSpec(config=OwnObjective, data=("own",), reference="none", build=None)
