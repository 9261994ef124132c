"""What text, JSON lines and token files share: how documents of tokens become samples."""

from typing import Literal

from planner.job.data import Data
from planner.job.model import Model

Documents = Literal["join", "mask", "separate"]
DOCUMENTS = (
    "how documents of an hf model become samples. join: windows of model.context tokens run over them. mask: in such "
    "windows, attention stays within a document. separate: one sample each, cut to model.context"
)


class DocumentData(Data):
    """Documents of text. For a model over bytes, `documents` has its default."""

    documents: Documents = "join"

    def flaw_with(self, model: Model) -> str:
        """Only documents of a tokenizer can be cut in several ways."""
        default = type(self).model_fields["documents"].default
        if model.kind == "hf" or self.documents == default:
            return ""
        return f"data.documents {self.documents} needs model.kind hf. Remove it"

    def sample_tokens(self, model: Model) -> int | None:
        """Those of a window."""
        return model.context if model.kind == "hf" and self.documents != "separate" else None

    @property
    def packing_setting(self) -> str:
        """`data.documents`, if windows keep attention within a document."""
        return "data.documents" if self.documents == "mask" else ""
