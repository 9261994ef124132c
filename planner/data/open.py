"""The one place that knows which class reads which kind of data."""

from planner.data.base import AnyDataset, Progress, no_progress
from planner.data.conversations import open_conversations
from planner.data.jsonl import JsonlDataset
from planner.data.text_files import TextDataset
from planner.data.tokens import TokensDataset
from planner.data.user_dataset import OwnDataset
from planner.job import Data, JsonlData, Model, OwnData, OwnModel, TextData, TokensData


def open_dataset(data: Data, model: Model, progress: Progress = no_progress) -> AnyDataset:
    """Open and check the data set that a job names; rows are cut to the model's context.

    Raises:
        DataError: a file is missing, empty or malformed; the message names it, and the line where there is one.
    """
    if isinstance(data, OwnData):
        return OwnDataset.open(data.path)
    assert not isinstance(model, OwnModel)  # the job was checked at birth
    match data:
        case TextData():
            return TextDataset.open(data.path, model.context)
        case TokensData():
            return TokensDataset.open(data.path, model.context)
        case JsonlData():
            return JsonlDataset.open(data.path, data.field, model.context, progress)
        case _:
            return open_conversations(data, model, progress)
