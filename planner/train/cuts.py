"""Agrees on whether all workers abandon the step in flight, because a stop does not wait for its end.

All workers must leave before the same round, because FSDP's collectives need each of them in every round. So about once
a second they sum over all workers how many of them want to leave. The sum is a collective, so all must begin it before
the same round, too. Rank 0 has the clock: the control message says when the first sum begins, and each sum says when
the next one does.

- Where a round takes more than half a second, workers wait for the sum at once. It takes a millisecond, and nobody is
  far behind, because the next round begins with a collective of FSDP anyway.
- Where rounds are shorter, the sum runs beside them. It is waited for when the next one begins.
- Where a step is short or has one round, there are no sums. It is finished.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from planner.train.collectives import blocked
from planner.train.hooks import Hooks, never
from planner.train.world import World

# From a request until workers leave, it takes up to twice as long, and a round.
_INTERVAL_S = 1.0
# To finish such a step takes hardly longer than to agree.
_SHORT_STEP_S = 4.0


class Cuts:
    """One worker's part in the agreement. All workers call `begin_rounds` and `leave_before` alike."""

    def __init__(self, world: World, hooks: Hooks) -> None:
        self._world, self._hooks = world, hooks
        self._round_s = 0.0
        """of the last step, on rank 0. 0: not known yet"""
        self._gap = self._next_round = 0
        self._sum: tuple[torch.Tensor, dist.Work | None] | None = None
        self._began_s = 0.0
        self._wait_for_device: Callable[[], None] = lambda: None

    def first_gap(self, num_rounds: int) -> int:
        """The rounds before the first sum of a step of so many rounds. 0: it has none. Only rank 0's answer counts."""
        if self._world.rank > 0 or self._hooks.should_cut is never:
            return 0
        if num_rounds < 2 or 0 < num_rounds * self._round_s < _SHORT_STEP_S:
            return 0
        return _gap(self._round_s) if self._round_s else 1

    def begin_step(self, gap: int) -> None:
        """Begin a step, whose first sum begins after `gap` rounds. 0: it has none."""
        self._gap = gap

    def begin_rounds(self) -> None:
        """Begin the rounds of a step, which may be repeated."""
        self._began_s, self._next_round = time.monotonic(), self._gap
        if self._gap:
            self._wait_for_device = _mark(self._world.device)

    def end_rounds(self, num_rounds: int) -> None:
        """Note that the device has done all rounds."""
        self._round_s = (time.monotonic() - self._began_s) / max(num_rounds, 1)

    def leave_before(self, number: int, num_rounds: int) -> bool:
        """Whether all workers leave before round `number` of `num_rounds`, from 0. Call it before each round."""
        if not self._gap or number == 0 or number < self._next_round:
            return False
        # Python may be many rounds ahead of a GPU, and the time would say nothing. It may be one interval ahead.
        self._wait_for_device()
        self._wait_for_device = _mark(self._world.device)
        if self._ended() or (self._gap == 1 and self._summed(number)):
            return True
        self._next_round = number + self._gap
        if self._gap > 1 and self._next_round < num_rounds:
            self._begin(number)
        return False

    def _summed(self, number: int) -> bool:
        self._begin(number)
        return self._ended()

    def _begin(self, number: int) -> None:
        """Begin to sum over all workers who wants to leave. Rank 0 adds the rounds until the next sum."""
        gap = self._gap_after(number) if self._world.rank == 0 else 0
        numbers = torch.tensor([int(self._hooks.should_cut()), gap], dtype=torch.int64)
        group = self._world.object_group
        self._sum = numbers, dist.all_reduce(numbers, op=dist.ReduceOp.SUM, group=group, async_op=True)

    def _ended(self) -> bool:
        """Wait for the sum that was begun, if there is one. Whether anyone wants to leave."""
        if self._sum is None:
            return False
        (numbers, work), self._sum = self._sum, None
        if work is not None:
            with blocked:
                work.wait()
        num_leaving, self._gap = numbers.tolist()
        return bool(num_leaving > 0)

    def _gap_after(self, number: int) -> int:
        """The rounds until the next sum, after `number` rounds."""
        if self._round_s:
            return _gap(self._round_s)
        # In a group's first step, only these rounds are known. The first ones may say little about the others.
        return min(_gap((time.monotonic() - self._began_s) / number), number)


def _gap(round_s: float) -> int:
    """The rounds that are done in an interval, at least 1."""
    return max(1, int(_INTERVAL_S / max(round_s, 1e-9)))


def _mark(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has done all that it was given until now."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize
