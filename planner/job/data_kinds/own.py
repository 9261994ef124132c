"""The data set of a user's own training loop."""

from typing import Literal

from pydantic import Field

from planner.job.data import Data, DataSpec


class OwnCode(Data):
    """Your own Python file: `dataset()` returns a map-style data set, and `train(run)` is the training loop."""

    kind: Literal["own"] = Field(description="your own data set and training loop")
    path: str = Field(min_length=1, description="path of the Python file")


OWN = DataSpec(
    config=OwnCode,
    samples="own",
    open="planner.data.user_dataset:open_own",
    make_batch=None,
    models=("own",),
    where="Write NAME.py",
)
