"""The data of `data.kind: feedback`."""

from collections.abc import Sequence
from dataclasses import replace

from planner.data.base import Progress
from planner.data.examples import Example, PromptCompletions
from planner.data.formats import FEEDBACK
from planner.data.lazy_sets import OnDemandSet
from planner.data.row_kinds import open_samples
from planner.data.row_tokenizer import RowTokenizer
from planner.data.sample_sets import FeedbackSet, SampleSet
from planner.data.samples import Ids
from planner.job import FeedbackData, GptModel, HfModel


def open_feedback(data: FeedbackData, model: GptModel | HfModel, progress: Progress) -> SampleSet | OnDemandSet:
    """Open prompts with one completion that is desirable or not. A pair gives one of each.

    Raises:
        DataError: a file or a row cannot be used.
    """
    return open_samples(data, model, progress, FeedbackRows)


class FeedbackRows(RowTokenizer):
    """Rows -> labelled completions."""

    formats = FEEDBACK
    sets = (FeedbackSet,)

    def examples(self, found: Example) -> list[Example]:
        """One example, or both completions of a pair."""
        if not isinstance(found, PromptCompletions) or len(found.completions) == 1:
            return [found]
        chosen, rejected = found.completions
        return [replace(found, completions=(chosen,)), replace(found, completions=(rejected,), is_desirable=False)]

    def keep_completions(self, prompt: Ids, completions: Sequence[Ids], *, is_desirable: bool) -> None:
        """Append the completion with its label."""
        self.append_completions(prompt, completions)
        self.marks.append([is_desirable])

    def make_set(self) -> SampleSet:
        """The labelled completions."""
        return FeedbackSet(**self.facts(marks=self.marks))
