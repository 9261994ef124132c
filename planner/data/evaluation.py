"""Training rows, with rows of another data set for evaluation behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from planner.data.base import RowContribution, RowLengths, SampleDataset, SetRows, sample_row_counts
from planner.data.samples import Sample


@dataclass(frozen=True, kw_only=True, eq=False)
class WithEvaluation:
    """Rows `[0, training.num_rows)` are those of `training`. The chosen rows of `evaluation` follow them."""

    training: SampleDataset
    evaluation: SampleDataset
    chosen: NDArray[np.int64]
    """rows of `evaluation` to evaluate on, shape `(num_evaluated,)`"""

    @property
    def num_rows(self) -> int:
        """Number of rows, those for evaluation included."""
        return self.training.num_rows + len(self.chosen)

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the content of both."""
        return sha256(f"{self.training.fingerprint} {self.evaluation_fingerprint}".encode()).hexdigest()

    @property
    def evaluation_fingerprint(self) -> str:
        """64 hex digits over the samples to evaluate on."""
        digest = sha256(f"{self.evaluation.fingerprint} {len(self.chosen)} chosen ".encode())
        digest.update(self.chosen.astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def sets(self) -> tuple[SetRows, ...]:
        """The sets of a mixture to train on."""
        return self.training.sets

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each change to rows."""
        return (*self.training.notes, *(f"rows of eval.data: {note}" for note in self.evaluation.notes))

    def sample(self, row: int) -> Sample:
        """The row's sample."""
        behind = row - self.training.num_rows
        sample: Sample = self.training.sample(row) if behind < 0 else self.evaluation.sample(int(self.chosen[behind]))
        return sample

    def samples(self, rows: Sequence[int]) -> list[Sample]:
        """The rows' samples."""
        if all(row < self.training.num_rows for row in rows):
            return self.training.samples(rows)
        return [self.sample(row) for row in rows]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample."""
        return sample_row_counts(row, self.sample(row))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' samples are.

        Raises:
            DataError: the length of a sample is known only when it is made.
        """
        numbers = np.asarray(rows, np.int64)
        behind = numbers - self.training.num_rows
        is_behind = behind >= 0
        if not is_behind.any():
            return self.training.lengths(numbers)
        found = RowLengths(np.empty_like(numbers), np.empty_like(numbers))
        _put(found, is_behind, self.evaluation.lengths(self.chosen[behind[is_behind]]))
        _put(found, ~is_behind, self.training.lengths(numbers[~is_behind]))
        return found


def _put(lengths: RowLengths, where: NDArray[np.bool_], part: RowLengths) -> None:
    lengths.tokens[where], lengths.squares[where] = part


def training_part(dataset: SampleDataset) -> SampleDataset:
    """The data set without rows of another one for evaluation."""
    return dataset.training if isinstance(dataset, WithEvaluation) else dataset
