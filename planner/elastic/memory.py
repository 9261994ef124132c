"""What follows when workers run out of memory: a lower cap on micro-batches for their kind of device, or the end.

- **In a micro-batch** (forward, loss, backward, evaluation), the cap becomes half of the largest micro-batch in force.
  One sample cannot be divided, so the run ends there.
- **In the optimizer's step**, gradients and optimizer state need the memory. Smaller micro-batches leave a less
  fragmented pool, which may suffice. So the cap is lowered once for a kind of device. A later failure there is one of
  those elsewhere: after weeks of steps with that cap, it was not the cap.
- **Elsewhere** (the model is made or loaded, rows are read, a reference is computed, a step is saved), no cap matters.
  Another process may have had the memory, so planner tries once more, as after other failures. If it comes again at the
  same place of such a device without a new step in between, the run ends.
- **With `batch.equality: bitwise`**, micro-batches decide the bits, so planner lowers nothing. The run ends and says
  what to write.

A lowering is no fruitless failure, and does not count against the limits of those. It ends nevertheless: each one at
least halves the largest micro-batch of a kind of device.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from planner.elastic.mistakes import GaveUp
from planner.events.event import Event
from planner.events.failures import CapLowered, OutOfMemory, StopsForMemory
from planner.plan.factory import BatchSizes
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps, lower

_IN_A_MICRO_BATCH = frozenset({"forward", "loss", "backward", "evaluation"})
_OPTIMIZER = "optimizer"


@dataclass(frozen=True, kw_only=True)
class MemoryState:
    """What the controller knows of its workers' memory."""

    caps: LoweredCaps
    tried: frozenset[tuple[str, str]] = frozenset()
    """device and place of the failures since the last new step that smaller micro-batches may not mend"""
    tried_at: int = 0
    """the most steps that were done when they came"""

    @classmethod
    def of(cls, sizes: BatchSizes) -> Self:
        """With the job's caps, none of them lowered."""
        return cls(caps=LoweredCaps(of=Caps.of(sizes)))

    def after(self, failure: OutOfMemory, sizes: BatchSizes, *, best_step: int) -> tuple[Self, tuple[Event, ...]]:
        """A copy after a worker ran out of memory, and what to tell. Nothing to tell: it counts as any other failure.

        Args:
            failure: where, and with which micro-batches.
            sizes: the job's batch sizes.
            best_step: the most steps that were done in this launch.

        Raises:
            GaveUp: the cap may not or cannot be lowered, or that has not helped.
        """
        if failure.place not in _IN_A_MICRO_BATCH and failure.place != _OPTIMIZER:
            return self._trying_again(failure, best_step), ()
        was = Caps(max_micro=failure.max_micro, max_tokens=failure.max_tokens)
        now = lower(was, samples=failure.samples, tokens=failure.tokens, longest=failure.longest)
        if sizes.equality == "bitwise":
            raise _ends(failure, "bitwise", now)
        if failure.place == _OPTIMIZER and self._has_lowered_for(failure):
            return self._trying_again(failure, best_step), ()
        if now is None:
            raise _ends(failure, "one_sample")
        if self._ignores_caps(failure.device, was):
            return self, ()
        lowered = LoweredCap(device=failure.device, place=failure.place, was=was, now=now)
        told = CapLowered(reason=failure, max_micro=now.max_micro, max_tokens=now.max_tokens)
        after = self._trying_again(failure, best_step) if failure.place == _OPTIMIZER else self
        return replace(after, caps=self.caps.with_one(lowered)), (told,)

    def _trying_again(self, failure: OutOfMemory, best_step: int) -> Self:
        """A copy that has met this failure.

        Raises:
            GaveUp: it came there before, and no new step was done since.
        """
        here, tried = (failure.device, failure.place), self.tried if best_step == self.tried_at else frozenset()
        if here in tried:
            raise _ends(failure, "again")
        return replace(self, tried=tried | {here}, tried_at=best_step)

    def _has_lowered_for(self, failure: OutOfMemory) -> bool:
        """Whether a cap was lowered for the same place on this kind of device."""
        return any(each.place == failure.place for each in self.caps.where({failure.device}))

    def _ignores_caps(self, device: str, was: Caps) -> bool:
        """Whether a group did not take the caps of its devices: lowering them again would not end."""
        return any(not was.is_within(each.now) for each in self.caps.where({device}))


def _ends(failure: OutOfMemory, why: Literal["bitwise", "one_sample", "again"], now: Caps | None = None) -> GaveUp:
    """The end of the run. `now`: the caps to write into the job file."""
    write = (None, None) if now is None else (now.max_micro, now.max_tokens)
    return GaveUp(StopsForMemory(reason=failure, why=why, max_micro=write[0], max_tokens=write[1]))
