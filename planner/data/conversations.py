"""Prompts and completions, from the files that people have them in."""

from planner.data.dataset import Progress, SampleDataset
from planner.errors import DataError
from planner.job import ChatData, FeedbackData, GptModel, HfModel, PairsData


def open_conversations(
    data: ChatData | PairsData | FeedbackData, model: GptModel | HfModel, progress: Progress
) -> SampleDataset:
    """Open and check rows of prompts and completions, tokenized as the model wants them.

    Raises:
        DataError: a file or a row cannot be used.
    """
    del model, progress
    raise DataError(f"data.kind {data.kind} cannot be read yet")
