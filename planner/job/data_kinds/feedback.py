"""Completions with a label."""

from typing import Literal

from pydantic import Field

from planner.job.data import DataSpec
from planner.job.rows import RowsData


class FeedbackData(RowsData):
    """Prompts, each with one completion that is desirable or not. A pair counts as two samples."""

    kind: Literal["feedback"] = Field(description="prompts with one completion that is desirable or not")


FEEDBACK = DataSpec(
    config=FeedbackData,
    samples="feedback",
    open="planner.data.feedback:open_feedback",
    make_batch="planner.train.sample_batches:feedback_batch",
    has_partners=True,
)
