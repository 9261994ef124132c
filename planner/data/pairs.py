"""The data of `data.kind: pairs`."""

from collections.abc import Sequence

from planner.data.base import Progress
from planner.data.formats import PAIRS
from planner.data.lazy_sets import OnDemandSet
from planner.data.row_kinds import open_samples
from planner.data.row_tokenizer import RowTokenizer
from planner.data.sample_sets import PairSet, SampleSet
from planner.data.samples import Ids
from planner.job import GptModel, HfModel, PairsData


def open_pairs(data: PairsData, model: GptModel | HfModel, progress: Progress) -> SampleSet | OnDemandSet:
    """Open prompts with a chosen and a rejected completion.

    Raises:
        DataError: a file or a row cannot be used.
    """
    return open_samples(data, model, progress, PairRows)


class PairRows(RowTokenizer):
    """Rows -> pairs."""

    formats = PAIRS
    sets = (PairSet,)

    def keep_completions(self, prompt: Ids, completions: Sequence[Ids], *, is_desirable: bool) -> None:
        """Append the pair."""
        del is_desirable
        self.append_completions(prompt, completions)

    def make_set(self) -> SampleSet:
        """The pairs."""
        return PairSet(**self.facts())
