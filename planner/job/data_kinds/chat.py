"""Conversations, and prompts with completions."""

from typing import Literal, Self

from pydantic import Field, model_validator

from planner.job.data import DataSpec
from planner.job.model import Model, OwnModel
from planner.job.rows import RowsData


class ChatData(RowsData):
    """Conversations or prompts with their completions, for supervised fine-tuning."""

    kind: Literal["chat"] = Field(description="conversations, or prompts with completions")
    loss_on: Literal["completions", "all"] = Field(
        default="completions", description="which tokens have a loss: those of the completions, or all"
    )
    packing: bool = Field(
        default=False, description="pack several conversations into one row. A packed row counts as one sample"
    )

    @model_validator(mode="after")
    def _packed_rows_are_whole(self) -> Self:
        if self.packing and self.max_prompt is not None:
            raise ValueError("packing does not cut prompts. Remove max_prompt or packing")
        if self.packing and self.tokenize == "on_demand":
            raise ValueError(
                "packing needs the length of all rows, which tokenize: on_demand does not know before the first step. "
                "Remove packing, or write tokenize: ahead"
            )
        return self

    def sample_tokens(self, model: Model) -> int | None:
        """About those of a packed row."""
        return model.context if self.packing and not isinstance(model, OwnModel) else None

    @property
    def packing_setting(self) -> str:
        """`data.packing`, if it is set."""
        return "data.packing" if self.packing else ""


CHAT = DataSpec(
    config=ChatData,
    samples="texts",
    open="planner.data.chats:open_chats",
    make_batch="planner.train.sample_batches:text_batch",
)
