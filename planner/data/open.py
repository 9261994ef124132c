"""Opens the data set of a job: it maps each kind of data to the class that reads it."""

from planner.data.base import AnyDataset, Progress, no_progress
from planner.data.conversations import open_conversations
from planner.data.document_sets import open_documents
from planner.data.jsonl import JsonlDataset
from planner.data.text_files import TextDataset
from planner.data.tokens import TokenFile, TokensDataset
from planner.data.user_dataset import OwnDataset
from planner.job import Data, HfModel, JsonlData, Model, OwnCode, OwnModel, TextData, TokensData


def open_dataset(data: Data, model: Model, progress: Progress = no_progress) -> AnyDataset:
    """Open and check the data set that a job names. Rows are cut to the model's context.

    Raises:
        DataError: a file is missing, empty or malformed. The message names the file, and the line if there is one.
    """
    if isinstance(data, OwnCode):
        return OwnDataset.open(data.path)
    assert not isinstance(model, OwnModel)  # a `Job` checks this
    match data:
        case TextData():
            return TextDataset.open(data.path, model.context)
        case TokensData():
            file = TokenFile.open(data.path)
            if isinstance(model, HfModel):
                return open_documents(file, data, model)
            return TokensDataset.of(file, model.context)
        case JsonlData():
            return JsonlDataset.open(data.path, data.field, model.context, progress)
        case _:
            return open_conversations(data, model, progress)
