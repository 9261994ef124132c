"""Collects measurement records."""

from planner.store.records import MeasurementRecord
from planner.story.curves import Column, Curve
from planner.story.values import Measured

_PARTS = ("data", "forward", "backward", "update", "communication")


class Measurer:
    """Adds up measurements. Those of undone steps stay in the sums, because their seconds were spent."""

    def __init__(self) -> None:
        self._tokens, self._mfu, self._memory = Column(), Column(), Column()
        self._parts = dict.fromkeys(_PARTS, 0.0)
        self._seconds = self._all_tokens = self._flops = self._peak_flops = 0.0

    def add(self, record: MeasurementRecord) -> None:
        """Add one more record."""
        self._tokens.add(record.step, record.tokens_per_s)
        self._mfu.add(record.step, record.mfu)
        self._memory.add(record.step, record.peak_memory_bytes)
        for name in _PARTS:
            self._parts[name] += getattr(record, f"{name}_s")
        self._seconds += record.seconds
        self._all_tokens += record.input_tokens
        self._flops += record.flops
        self._peak_flops += record.seconds * record.peak_flops_per_s

    def cut(self, step: int) -> None:
        """Forget the curves after `step`."""
        for column in (self._tokens, self._mfu, self._memory):
            column.cut(step + 1)

    def measured(self) -> Measured:
        """Everything so far."""
        is_divided = any(seconds > 0 for seconds in self._parts.values())
        return Measured(
            tokens_per_s=_known(self._tokens),
            mean_tokens_per_s=self._all_tokens / self._seconds if self._seconds > 0 else 0.0,
            mfu=_known(self._mfu),
            mean_mfu=self._flops / self._peak_flops if self._peak_flops > 0 else 0.0,
            memory_bytes=_known(self._memory),
            step_parts=dict(self._parts) if is_divided else {},
            seconds=self._seconds,
        )


def _known(column: Column) -> Curve:
    """Its curve, or an empty one if every value is 0, which means not known."""
    return column.curve() if any(column.values) else Curve()
