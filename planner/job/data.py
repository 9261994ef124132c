"""The job's section `data`: what to train on."""

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from planner.job.section import Section


class OwnCode(Section):
    """Your own Python file: `dataset()` returns a map-style data set, and `train(run)` is the training loop."""

    kind: Literal["own"] = Field(description="your own data set and training loop")
    path: str = Field(min_length=1, description="path of the Python file")


class TextData(Section):
    """Text files joined into one stream of bytes and cut into samples of `model.context` tokens."""

    kind: Literal["text"] = Field(description="text files as one stream of bytes")
    path: str = Field(
        min_length=1, description="a file, a folder, a glob, or python-stdlib for Python's own library as a sample text"
    )


class JsonlData(Section):
    """One JSON object per line. Each row is one sample, cut to `model.context` tokens."""

    kind: Literal["jsonl"] = Field(description="one JSON object per line")
    path: str = Field(min_length=1, description="a file or a glob")
    field: str = Field(default="text", min_length=1, description="key of the text in each row")


class TokensData(Section):
    """A token file that `planner prepare` made from text or jsonl data. It opens at once at any size."""

    kind: Literal["tokens"] = Field(description="a token file made by planner prepare")
    path: str = Field(min_length=1, description="path of the token file")
    documents: Literal["join", "mask", "separate"] = Field(
        default="join",
        description="how documents of an hf model become samples. join: windows of model.context tokens run over them. "
        "mask: in such windows, attention stays within a document. separate: one sample each, cut to model.context",
    )


_SPLIT = "split of a data set folder, or of rows that name their split. null means the only split, or train"


class _Rows(Section):
    """The keys that all data sets of prompts and completions have."""

    path: str = Field(
        min_length=1, description="JSON array, jsonl or parquet files (a file or a glob), or a data set folder"
    )
    split: str | None = Field(default=None, min_length=1, description=_SPLIT)
    max_prompt: int | None = Field(
        default=None,
        ge=1,
        le=2**22,
        description="tokens to keep of a prompt if prompt and completion together exceed model.context. null means all",
    )
    cut_prompt: Literal["start", "end"] = Field(
        default="start", description="which end of a prompt loses tokens when it is cut to max_prompt"
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="refuse stops the run if a row cannot be used. skip leaves such rows out and counts them",
    )


class ChatData(_Rows):
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
        return self


class PairsData(_Rows):
    """Prompts, each with a chosen and a rejected completion, for preference optimisation."""

    kind: Literal["pairs"] = Field(description="prompts with a chosen and a rejected completion")


class FeedbackData(_Rows):
    """Prompts, each with one completion that is desirable or not. A pair counts as two samples."""

    kind: Literal["feedback"] = Field(description="prompts with one completion that is desirable or not")


Data = TextData | JsonlData | TokensData | ChatData | PairsData | FeedbackData | OwnCode

DATA_KINDS: tuple[str, ...] = tuple(get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(Data))
"""the values of `data.kind`"""


def packing_setting(data: Data) -> str:
    """The setting that puts several documents into one row, with attention within each. Empty if rows have one."""
    if isinstance(data, ChatData) and data.packing:
        return "data.packing"
    return "data.documents" if isinstance(data, TokensData) and data.documents == "mask" else ""
