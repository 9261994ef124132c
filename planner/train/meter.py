"""Measures tokens, FLOPs, memory and the division of time, over all workers.

A worker adds up what it measures. When metrics are due, about once a second, two small all-reduces begin, and run
beside the next step. Their result is recorded after that step. So other steps cost no communication.
"""

import re
import resource
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from planner.store.records import MeasurementRecord, StepRecord
from planner.train.batches import LoadedStep, StepCosts, TokenCounts
from planner.train.collectives import blocked
from planner.train.flops import StepFlops
from planner.train.stopwatch import PARTS, stopwatch_of
from planner.train.world import World

# Times and speeds travel as integers of these units.
_SECOND, _FLOP_PER_S = 1e-6, 1e9
_STATUS = Path("/proc/self/status")
_NO_COSTS = StepCosts()
_MOST_COUNT = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A measurement that is being summed over all workers."""

    step: int
    num_steps: int
    seconds: float
    costs: StepCosts
    num_rounds: int
    sums: Tensor
    largest: Tensor
    works: "tuple[dist.Work | None, ...]"


class Meter:
    """What one worker measures of a generation's steps. All workers call `begin_step` and `end_step` together."""

    def __init__(self, world: World, flops: StepFlops, peak_flops_per_s: float) -> None:
        self._world, self._flops, self._peak_flops_per_s = world, flops, peak_flops_per_s
        self.watch = stopwatch_of(world.device)
        self._tokens = TokenCounts()
        self._num_steps, self._seconds = 0, 0.0
        self._costs, self._num_rounds = _NO_COSTS, 0
        self._blocked_s = self._blocked_before_s = 0.0
        self._begun, self._measured_step = LoadedStep(), 0
        self._pending: _Pending | None = None
        self._newest: MeasurementRecord | None = None

    @property
    def newest(self) -> dict[str, float]:
        """The newest measurement, for reports. It is of earlier steps, and its times are means per step.

        All are 0 before the first.
        """
        found, times = self._newest, [f"{part}_s" for part in (*PARTS, "communication")]
        if found is None:
            return dict.fromkeys(("input_tokens", "tokens_per_s", "mfu", "peak_memory_bytes", *times), 0)
        return {
            "input_tokens": found.input_tokens // found.num_steps,
            "tokens_per_s": found.tokens_per_s,
            "mfu": found.mfu,
            "peak_memory_bytes": found.peak_memory_bytes,
            **{name: getattr(found, name) / found.num_steps for name in times},
        }

    def begin_step(self, step: LoadedStep) -> None:
        """Note the tokens and costs of a step that begins. The time until now belongs to no part of it."""
        self._begun = step
        self._blocked_before_s = blocked.seconds
        self.watch.skip()
        self.watch.mark()

    def end_step(self, record: StepRecord, *, is_due: bool, is_last: bool) -> list[MeasurementRecord]:
        """Note a completed step. Returns the measurements that are summed by now, the same on every worker.

        Args:
            record: of the step.
            is_due: whether to measure the steps up to this one. The same on every worker.
            is_last: whether no step follows. Then the steps up to this one are measured, and their sum waited for.
        """
        self._count(self._begun)
        self._num_steps += 1
        self._measured_step = record.step + 1
        self._seconds += record.seconds
        self._blocked_s += blocked.seconds - self._blocked_before_s
        found = self._finished()
        if is_due or is_last:
            self._pending = self._start(is_last=is_last)
        return [*found, *self._finished()] if is_last else found

    def drop_step(self) -> list[MeasurementRecord]:
        """Forget the step that has begun. None follows. Returns the measurements of the steps before it."""
        self.watch.rewind()
        found = self._finished()
        if self._num_steps:
            self._pending = self._start(is_last=True)
        return [*found, *self._finished()]

    def _count(self, step: LoadedStep) -> None:
        """Add a step's tokens and costs."""
        for batch in step.batches:
            self._tokens += batch.token_counts
        if step.costs is not None:
            self._costs += step.costs
            self._num_rounds += len(step.batches)

    def _start(self, *, is_last: bool) -> _Pending:
        """Begin to sum what was measured since the last time."""
        times, tokens = self.watch.take(all_of_it=is_last), self._tokens
        numbers = (
            *(getattr(tokens, each.name) for each in fields(tokens)),
            int(self._peak_flops_per_s > 0),
            round(self._peak_flops_per_s / _FLOP_PER_S),
            *(round(times[part] / _SECOND) for part in PARTS),
            # NCCL's collectives return before they are done.
            round(self._blocked_s / _SECOND) if self._world.is_gloo else 0,
        )
        sums = torch.tensor(numbers, dtype=torch.int64)
        largest = torch.tensor([peak_memory_bytes(self._world.device)], dtype=torch.int64)
        group = self._world.object_group
        pending = _Pending(
            step=self._measured_step,
            num_steps=self._num_steps,
            seconds=self._seconds,
            costs=self._costs,
            num_rounds=self._num_rounds,
            sums=sums,
            largest=largest,
            works=(
                # Two, because one cannot add and take the largest at once.
                dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group, async_op=True),
                dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group, async_op=True),
            ),
        )
        self._tokens, self._num_steps, self._seconds, self._blocked_s = TokenCounts(), 0, 0.0, 0.0
        self._costs, self._num_rounds = _NO_COSTS, 0
        return pending

    def _finished(self) -> list[MeasurementRecord]:
        """Wait for the sum that was begun, if there is one, and return it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        for work in pending.works:
            if work is not None:
                work.wait()
        self._newest = self._record(pending)
        return [self._newest]

    def _record(self, pending: _Pending) -> MeasurementRecord:
        numbers, num_counts = pending.sums.tolist(), len(fields(TokenCounts))
        tokens = TokenCounts(**{each.name: numbers[i] for i, each in enumerate(fields(TokenCounts))})
        num_known, peak, *times = numbers[num_counts:]
        data_s, forward_s, backward_s, update_s, communication_s = (
            number * _SECOND / self._world.world_size for number in times
        )
        return MeasurementRecord(
            step=pending.step,
            num_steps=pending.num_steps,
            seconds=pending.seconds,
            input_tokens=tokens.inputs,
            padded_tokens=tokens.padded,
            flops=float(self._flops.of(tokens)),
            peak_flops_per_s=peak * _FLOP_PER_S if num_known == self._world.world_size else 0.0,
            peak_memory_bytes=int(pending.largest),
            data_s=data_s,
            forward_s=forward_s,
            backward_s=backward_s,
            update_s=update_s,
            communication_s=communication_s,
            time_s=time.time(),
            # A figure must not end training: in a ledger, numbers have 63 bits.
            cost=min(pending.costs.samples, _MOST_COUNT),
            round_cost=min(pending.costs.rounds, _MOST_COUNT),
            num_rounds=pending.num_rounds,
        )


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory that this process has had so far: allocated by torch on CUDA, resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":
        # Not `getrusage`, which on Linux begins with the peak of the process that started this one.
        found = re.search(rb"VmHWM:\s*(\d+) kB", _STATUS.read_bytes())
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
