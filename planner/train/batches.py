"""One worker's micro-batches of an optimizer step: from positions in the data order to rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from planner.base import progress_counter
from planner.data.base import SampleDataset
from planner.order.order import Order
from planner.plan import Plan
from planner.plan.by_length import ByLength


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens of some micro-batches. All 0 if they are not known."""

    inputs: int = 0
    """of the samples (both completions of a pair), without padding and ghosts. Each once, however many passes use it"""
    padded: int = 0
    """the same with padding and ghosts"""
    squares: int = 0
    """the sum over the samples' documents of the square of their length, for the cost of attention"""
    mismatched: int = 0
    """of the mismatched sequences of `kto`, without padding and ghosts. They are not in `inputs`"""
    mismatched_squares: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        """The tokens of both."""
        return TokenCounts(**{name: count + vars(other)[name] for name, count in vars(self).items()})


class MicroBatch(Protocol):
    """The samples of one forward pass."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The data rows of its samples. A ghost has none, and its weight is zero."""
        ...

    @property
    def position(self) -> int:
        """The first sample's position in the order. It identifies the micro-batch on any worker."""
        ...

    @property
    def content(self) -> Any:
        """The value that the objective or the user's loop gets."""
        ...

    @property
    def token_counts(self) -> TokenCounts:
        """How many tokens it has."""
        ...

    def check_sum(self) -> int:
        """The sum of the samples' checksums, computed from the values in `content`."""
        ...

    def pinned(self) -> Self:
        """A copy in page-locked memory, from which a GPU can copy asynchronously."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """What a step costs by the lengths of its samples, in the unit of `planner.plan.by_length.ByLength.costs`."""

    samples: int = 0
    """all samples together. The same at every world size"""
    rounds: int = 0
    """W times the sum over rounds of the round's most expensive micro-batch: as if every worker had that one"""

    def __add__(self, other: "StepCosts") -> "StepCosts":
        """The costs of both."""
        return StepCosts(samples=self.samples + other.samples, rounds=self.rounds + other.rounds)


@dataclass(frozen=True, kw_only=True)
class LoadedStep:
    """One worker's part of an optimizer step."""

    batches: list[MicroBatch] = field(default_factory=list)
    """one per round"""
    costs: StepCosts | None = None
    """of all workers. None unless lengths decide who computes what"""

    def pinned(self) -> "LoadedStep":
        """A copy in page-locked memory."""
        return replace(self, batches=[batch.pinned() for batch in self.batches])


MakeBatch = Callable[..., MicroBatch]
"""(data set, rows, position of the first row) -> micro-batch. Without rows, a ghost. `is_packed=True`: without padding.
With `Loader.has_partners` it gets `partners=`, too: one row for each row"""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Loads one worker's share of a global batch."""

    dataset: SampleDataset
    order: Order
    plan: Plan
    rank: int
    make_batch: MakeBatch
    has_partners: bool = False
    """whether each sample needs the next sample of its global batch as a partner (the last one needs the first). Then
    `make_batch` gets `partners=`, one row for each row. Partners do not depend on W, m or A"""

    def load(self, cursor: int) -> LoadedStep:
        """The micro-batches of the optimizer step that begins at position `cursor`, and what the whole step costs.

        Raises:
            DataError: a row can no longer be read.
        """
        return self._loaded(lambda start, stop: self.order.rows(cursor + start, cursor + stop), cursor)

    def load_held_out(self) -> list[MicroBatch]:
        """The micro-batches of this worker's held-out samples. The plan's global batch must be all held-out samples."""
        return self._loaded(self.order.held_out_rows, 0).batches

    def _loaded(self, rows_at: Callable[[int, int], NDArray[np.int64]], cursor: int) -> LoadedStep:
        if not isinstance(self.plan, ByLength):
            slots = self.plan.micro_batches(self.rank)
            return LoadedStep(batches=[self._micro_batch(rows_at, slot, cursor) for slot in slots])
        rows = rows_at(0, self.plan.global_batch)
        lengths = self.dataset.lengths(rows)
        tokens, squares = lengths.tokens.tolist(), lengths.squares.tolist()
        found, costs = self.plan.assignment(tokens, squares), self.plan.costs(tokens, squares)
        return LoadedStep(
            batches=[self._packed(rows, slot, cursor) for slot in found.micro_batches(self.rank)],
            costs=StepCosts(samples=sum(costs), rounds=self.plan.world_size * found.step_cost(costs)),
        )

    def _packed(self, rows: NDArray[np.int64], slot: tuple[int, ...], cursor: int) -> MicroBatch:
        """The samples at these offsets of the global batch, without padding."""
        progress_counter.count_work()
        chosen = rows[list(slot)].tolist()
        more = {"partners": rows[[(i + 1) % len(rows) for i in slot]].tolist()} if self.has_partners else {}
        return self.make_batch(self.dataset, chosen, cursor + (slot[0] if slot else len(rows)), is_packed=True, **more)

    def _micro_batch(self, rows_at: Callable[[int, int], NDArray[np.int64]], slot: range, cursor: int) -> MicroBatch:
        rows = [int(row) for row in rows_at(slot.start, slot.stop)]
        more: dict[str, list[int]] = {}
        if self.has_partners:
            following = slot.stop % self.plan.global_batch
            behind = rows_at(following, following + 1) if rows else ()
            more["partners"] = [*rows[1:], *map(int, behind)]
        # Each micro-batch counts as progress, so that the controller takes no slow disk for a hang.
        progress_counter.count_work()
        return self.make_batch(self.dataset, rows, cursor + slot.start, **more)
