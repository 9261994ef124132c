"""Opens the data set of a job: it maps each kind of data to the class that reads it."""

from planner.data.base import AnyDataset, Progress, no_progress
from planner.data.conversations import open_conversations
from planner.data.document_sets import open_documents
from planner.data.jsonl import JsonlDataset
from planner.data.lazy_sets import open_on_demand
from planner.data.sample_sets import SampleSet, SetRows
from planner.data.text_files import TextDataset
from planner.data.tokens import TokenFile, TokensDataset
from planner.data.user_dataset import OwnDataset
from planner.errors import DataError
from planner.job import Data, HfModel, Job, JsonlData, Model, OwnCode, OwnModel, TextData, TokensData


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
            opener = open_on_demand if data.tokenize == "on_demand" else open_conversations
            return opener(data, model, progress)


def open_evaluation(job: Job, progress: Progress = no_progress) -> SampleSet | None:
    """Open the rows of `eval.data` as the rows to train on: with the same tokenizer, cut and packing. None without it.

    Raises:
        DataError: a file is missing or a row cannot be used.
    """
    if job.eval_data is None:
        return None
    assert not isinstance(job.model, OwnModel)  # a `Job` checks this
    try:
        return open_conversations(job.eval_data, job.model, progress)
    except DataError as error:
        raise DataError(_of_evaluation(str(error))) from error


def _of_evaluation(problem: str) -> str:
    """An error about the rows of `eval.data`, which were opened as a section `data`."""
    return f"eval.{problem}" if problem.startswith("data.") else f"eval.data: {problem}"


def sets_of(dataset: AnyDataset) -> tuple[SetRows, ...]:
    """The sets of a mixture, in the order of their rows. Empty for any other data set."""
    sets: tuple[SetRows, ...] = getattr(dataset, "sets", ())
    return sets
