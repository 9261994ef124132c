"""Opens data whose rows are prompts and completions, for any kind of rows."""

from planner.data.ahead_sets import open_ahead
from planner.data.base import Progress
from planner.data.lazy_sets import OnDemandSet, open_on_demand
from planner.data.row_tokenizer import RowTokenizer
from planner.data.sample_sets import SampleSet
from planner.job import GptModel, HfModel, RowsData


def open_samples(
    data: RowsData, model: GptModel | HfModel, progress: Progress, kind: type[RowTokenizer]
) -> SampleSet | OnDemandSet:
    """Open the rows as samples of that kind: tokenized now, or when a step needs them (`data.tokenize`).

    Raises:
        DataError: a file or a row cannot be used. The message names it, with the line or the row's number.
    """
    opener = open_on_demand if data.tokenize == "on_demand" else open_ahead
    return opener(data, model, progress, kind)
