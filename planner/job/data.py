"""What is trained on."""

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from planner.job.section import Section


class OwnData(Section):
    """A Python file with a training loop of your own: `dataset()`, which returns a map, and `train(run)`."""

    kind: Literal["own"] = Field(description="a loop of your own")
    path: str = Field(min_length=1, description="the Python file")


class TextData(Section):
    """Text files as one stream of bytes, cut into samples of `model.context` tokens."""

    kind: Literal["text"] = Field(description="files as one stream")
    path: str = Field(min_length=1, description="a file, a folder, a glob, or python-stdlib")


class JsonlData(Section):
    """One JSON object per line; each row is a sample, cut to `model.context` tokens."""

    kind: Literal["jsonl"] = Field(description="a row per line")
    path: str = Field(min_length=1, description="a file or a glob")
    field: str = Field(default="text", min_length=1, description="the key that holds the text")


class TokensData(Section):
    """A file that `planner prepare` made of text or jsonl: the same samples, opened at once at any size."""

    kind: Literal["tokens"] = Field(description="a file that planner prepare made")
    path: str = Field(min_length=1, description="the file that planner prepare made")


_SPLIT = "of a data set folder or of rows that name theirs; null: the only one, or train"


class _Rows(Section):
    """What data sets of prompts and completions share."""

    path: str = Field(
        min_length=1, description="JSON array, jsonl or parquet files (a file or a glob), or a data set folder"
    )
    split: str | None = Field(default=None, min_length=1, description=_SPLIT)
    max_prompt: int | None = Field(
        default=None,
        ge=1,
        le=2**22,
        description="tokens that a prompt is cut to where it and its completion do not fit",
    )
    cut_prompt: Literal["start", "end"] = Field(default="start", description="the end of a prompt that is cut off")
    bad_rows: Literal["refuse", "skip"] = Field(
        default="refuse", description="a row that cannot be used stops the run, or is left out and counted"
    )


class ChatData(_Rows):
    """Conversations or prompts with their completions, for supervised fine-tuning."""

    kind: Literal["chat"] = Field(description="conversations, or prompts with completions")
    loss_on: Literal["completions", "all"] = Field(
        default="completions", description="tokens that bear loss: those of the assistant, or all"
    )
    packing: bool = Field(default=False, description="several conversations in a row, which is the sample then")

    @model_validator(mode="after")
    def _packed_rows_are_whole(self) -> Self:
        if self.packing and self.max_prompt is not None:
            raise ValueError("packing cuts no prompts; leave max_prompt out, or packing")
        return self


class PairsData(_Rows):
    """A prompt with a chosen and a rejected completion, for preference optimisation."""

    kind: Literal["pairs"] = Field(description="prompts with a chosen and a rejected completion")


class FeedbackData(_Rows):
    """Completions that are desirable or not; a pair counts as two of them."""

    kind: Literal["feedback"] = Field(description="prompts with a completion that is desirable or not")


Data = TextData | JsonlData | TokensData | ChatData | PairsData | FeedbackData | OwnData

DATA_KINDS: tuple[str, ...] = tuple(get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(Data))
"""the values of `data.kind`"""
