"""Token files."""

from typing import Literal

from pydantic import Field

from planner.job.data import DataSpec
from planner.job.data_kinds.documents import DOCUMENTS, DocumentData, Documents


class TokensData(DocumentData):
    """A token file that `planner prepare` made from text or jsonl data. It opens at once at any size."""

    kind: Literal["tokens"] = Field(description="a token file made by planner prepare")
    path: str = Field(min_length=1, description="path of the token file")
    documents: Documents = Field(default="join", description=DOCUMENTS)


TOKENS = DataSpec(
    config=TokensData,
    samples="texts",
    open="planner.data.text_sets:open_tokens",
    make_batch="planner.train.sample_batches:text_batch",
)
