"""Pairs of completions."""

from typing import Literal

from pydantic import Field

from planner.job.data import DataSpec
from planner.job.rows import RowsData


class PairsData(RowsData):
    """Prompts, each with a chosen and a rejected completion, for preference optimisation."""

    kind: Literal["pairs"] = Field(description="prompts with a chosen and a rejected completion")


PAIRS = DataSpec(
    config=PairsData,
    samples="pairs",
    open="planner.data.pairs:open_pairs",
    make_batch="planner.train.sample_batches:pair_batch",
)
