"""The typical steps of a run by world size: one fold over its ledger, in bounded memory."""

from collections import deque
from dataclasses import dataclass
from statistics import median

from planner.plan import BatchSizes
from planner.plan.lowered_caps import Caps
from planner.plan.rates import SizeTimes
from planner.provenance.identity import recorded_sizes
from planner.store.records import CommitRecord, GenerationRecord, MeasurementRecord, Record, StepRecord

# The median of so many is certain enough, and a run may have millions.
_MOST_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """What a run's steps took, with the batch sizes, the model and the recipe of its newest generation."""

    header: GenerationRecord
    """of the newest generation"""
    sizes: BatchSizes
    times: tuple[SizeTimes, ...]
    """by rising world size. Without the first step of each generation, which is slower"""
    sample_tokens: float
    """of a mean sample, without padding. 0 if not known"""
    sample_flops: float
    """model FLOPs of a mean sample. 0 if not known"""
    peak_flops_per_s: float
    """of one worker's device. 0 if not known"""
    commit_s: float
    """seconds for which commits stopped training, per step"""
    num_commits: int
    num_steps: int
    """all steps that were computed, also those that were done again"""
    left_out: int
    """steps of generations with another batch, model or recipe"""
    other_caps: int
    """steps of a world size that had other micro-batches later, so that those count"""


class StepTimesFold:
    """Takes a run's records, oldest first."""

    def __init__(self) -> None:
        self._header: GenerationRecord | None = None
        self._left_out = self._num_steps = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._left_out += self._num_steps
        self._other_caps = 0
        self._caps: dict[int, Caps] = {}
        self._seconds: dict[int, deque[float]] = {}
        self._counts: dict[int, int] = {}
        self._waited: dict[int, list[float]] = {}
        self._tokens = self._flops = self._measured_steps = 0.0
        self._peak = 0.0
        self._commit_s = 0.0
        self._num_commits = self._num_steps = 0

    def add(self, record: Record) -> None:
        """Add one more record."""
        if isinstance(record, StepRecord):
            self._add_step(record)
        elif isinstance(record, MeasurementRecord):
            self._add_measurement(record)
        elif isinstance(record, CommitRecord):
            self._commit_s += record.seconds
            self._num_commits += 1
        elif isinstance(record, GenerationRecord):
            self._begin(record)

    def _begin(self, header: GenerationRecord) -> None:
        if self._header is not None and _recipe(self._header) != _recipe(header):
            self._forget_all()
        self._header, self._is_first, self._is_first_measured = header, True, True
        self._has_caps = False

    def _forget_other_caps(self, header: GenerationRecord) -> None:
        """Before the first typical step of a generation. Its size may have had other micro-batches until then."""
        size, caps = header.world_size, Caps.of(recorded_sizes(header))
        if self._caps.get(size, caps) != caps:
            self._seconds.pop(size, None)
            self._waited.pop(size, None)
            self._other_caps += self._counts.pop(size, 0)
        self._caps[size] = caps

    def _add_step(self, record: StepRecord) -> None:
        self._num_steps += 1
        if self._header is None or self._is_first:
            self._is_first = False
            return
        if not self._has_caps:
            self._forget_other_caps(self._header)
            self._has_caps = True
        size = self._header.world_size
        self._seconds.setdefault(size, deque(maxlen=_MOST_STEPS)).append(record.seconds)
        self._counts[size] = self._counts.get(size, 0) + 1

    def _add_measurement(self, record: MeasurementRecord) -> None:
        """Add the tokens of these steps, and their part in collectives, unless the generation's first step is in it."""
        if self._header is None:
            return
        size = self._header.world_size
        self._tokens += record.input_tokens
        self._flops += record.flops
        self._measured_steps += record.num_steps
        self._peak = record.peak_flops_per_s / size
        if not self._is_first_measured:
            sums = self._waited.setdefault(size, [0.0, 0.0])
            sums[0] += record.communication_s
            sums[1] += record.seconds
        self._is_first_measured = False

    def times(self) -> StepTimes | None:
        """What the steps took so far. None before the first generation."""
        if self._header is None:
            return None
        sizes = recorded_sizes(self._header)
        samples = self._measured_steps * sizes.global_batch
        return StepTimes(
            header=self._header,
            sizes=sizes,
            times=tuple(self._of(size) for size in sorted(self._seconds)),
            sample_tokens=self._tokens / samples if samples else 0.0,
            sample_flops=self._flops / samples if samples else 0.0,
            peak_flops_per_s=self._peak,
            commit_s=self._commit_s / self._num_steps if self._num_steps else 0.0,
            num_commits=self._num_commits,
            num_steps=self._num_steps,
            left_out=self._left_out,
            other_caps=self._other_caps,
        )

    def _of(self, size: int) -> SizeTimes:
        seconds = median(self._seconds[size])
        waited_s, of_s = self._waited.get(size, (0.0, 0.0))
        part = waited_s / of_s if of_s else 0.0
        return SizeTimes(
            world_size=size,
            steps=self._counts[size],
            seconds=seconds,
            caps=self._caps[size],
            waited_s=part * seconds,
        )


def _recipe(header: GenerationRecord) -> tuple[object, ...]:
    """What the times of two generations must share to be compared. Caps on micro-batches only change the rounds."""
    return recorded_sizes(header).apart_from_caps, header.identity.model, header.identity.recipe, header.identity.data
