"""Texts of JSON lines."""

from typing import Literal

from pydantic import Field

from planner.job.data import DataSpec
from planner.job.data_kinds.documents import DOCUMENTS, DocumentData, Documents


class JsonlData(DocumentData):
    """One JSON object with a text per line. Each row is one sample, cut to `model.context` tokens."""

    kind: Literal["jsonl"] = Field(description="one JSON object with a text per line")
    path: str = Field(min_length=1, description="a file or a glob")
    field: str = Field(default="text", min_length=1, description="key of the text in each row")
    documents: Documents = Field(default="separate", description=DOCUMENTS)


JSONL = DataSpec(
    config=JsonlData,
    samples="texts",
    open="planner.data.text_sets:open_jsonl",
    make_batch="planner.train.sample_batches:text_batch",
)
