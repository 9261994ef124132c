"""Text files."""

from typing import Literal

from pydantic import Field

from planner.job.data import DataSpec
from planner.job.data_kinds.documents import DOCUMENTS, DocumentData, Documents
from planner.job.model import Model, OwnModel


class TextData(DocumentData):
    """Text files. A model over bytes reads them as one stream, cut into samples of `model.context` bytes."""

    kind: Literal["text"] = Field(description="text files: one stream of bytes, or a document of an hf model each")
    path: str = Field(
        min_length=1, description="a file, a folder, a glob, or python-stdlib for Python's own library as a sample text"
    )
    documents: Documents = Field(default="join", description=DOCUMENTS)

    def sample_tokens(self, model: Model) -> int | None:
        """Those of a window."""
        return None if isinstance(model, OwnModel) or self.documents == "separate" else model.context


TEXT = DataSpec(
    config=TextData,
    samples="texts",
    open="planner.data.text_sets:open_text",
    make_batch="planner.train.sample_batches:text_batch",
    where="Write a file, a folder, a glob or python-stdlib",
)
