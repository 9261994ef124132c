"""The control message: one asynchronous int64 all-reduce per step.

It starts when a step's gradients are done, and runs while the optimizer updates the weights. It carries that step's
evidence (samples, loss, checksum), the next step's denominators, and how far the commit in flight is. All values are
integers, so the sums do not depend on the order of the workers.
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from planner.train.collectives import blocked
from planner.train.world import World

# A loss is sent in units of 2^-36 (1.5e-11). The sum over workers stays below 2^62, so it never overflows.
_LOSS_UNIT = 2.0**-36
_LARGEST_LOSS = 2.0**26


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The values of one worker's control message, or their sums over all workers."""

    denominators: tuple[int, ...]
    """of the next step"""
    samples: int = 0
    loss: float = 0.0
    """the worker's part of the global mean. NaN in the sum if any part was not finite (or above 2^26 / W)"""
    metrics: tuple[float, ...] = ()
    """the worker's parts of the metrics' global means, NaN as in `loss`. Equally many on every worker"""
    check_sum: int = 0
    """modulo 2^64"""
    placement: int = 0
    """`planner.plan.by_length.placement`, modulo 2^64. 0 in plans that need no lengths"""
    stop: int = 0
    """workers that want to stop before the next step"""
    failed: int = 0
    """workers that cannot go on"""
    report: int = 0
    """whether metrics are due"""
    commit: int = 0
    """whether a commit is due before the next step. Rank 0 decides it"""
    written: int = 0
    """workers that have written their part of the commit in flight"""
    sealed: int = 0
    """whether its manifest is written. Rank 0 knows it"""
    silent: int = 0
    """workers whose storage takes nothing more. Then all wait for the commit, so that the controller sees the hang"""
    copy: int = 0
    """whether a copy in the keepers' memory is due before the next step. Rank 0 decides it"""
    publishing: int = 0
    """workers whose last copy is not yet published (`planner.train.copies`)"""
    must_commit: int = 0
    """workers that may not stop with their last step only in memory"""
    cut_gap: int = 0
    """rounds of the next step before workers first ask each other whether to abandon it (`planner.train.cuts`). 0: they
    do not ask. Rank 0 decides it"""


def exact_sums(parts: torch.Tensor) -> tuple[float, ...]:
    """The sums of `parts`, `(n, k)`, over n micro-batches: k values, the loss and the metrics.

    Each part is first rounded to the unit in which it is sent. Multiples of one unit (2^-36) add up exactly in float64
    up to 2^17. So the sum over all micro-batches is equal in any order and on any number of workers. NaN and infinity
    stay as they are. Waits for the device once.
    """
    return tuple(total * _LOSS_UNIT for total in torch.round(parts.double() / _LOSS_UNIT).sum(dim=0).tolist())


class Pending:
    """A control message that is being summed."""

    def __init__(self, tensor: torch.Tensor, work: "dist.Work | None", num_metrics: int) -> None:
        self._tensor, self._work, self._num_metrics = tensor, work, num_metrics

    def wait(self) -> Tally:
        """Wait for the sum over all workers and return it."""
        if self._work is not None:
            with blocked:
                self._work.wait()
        return _decode(self._tensor.tolist(), self._num_metrics)


def start(world: World, tally: Tally) -> Pending:
    """Begin to sum a tally over all workers. All workers must call it equally often."""
    tensor = torch.tensor(_encode(tally, world.world_size), dtype=torch.int64)
    # By gloo, on the CPU: Python needs the numbers, and through NCCL it would have to wait for the device.
    work = dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=world.object_group, async_op=True)
    return Pending(tensor, work, len(tally.metrics))


def exchange(world: World, tally: Tally) -> Tally:
    """Sum a tally over all workers and wait for the result."""
    return start(world, tally).wait()


def _encode(tally: Tally, world_size: int) -> list[int]:
    return [
        tally.samples,
        *_halves(tally.check_sum),
        *_halves(tally.placement),
        tally.stop,
        tally.failed,
        tally.report,
        tally.commit,
        tally.written,
        tally.sealed,
        tally.silent,
        tally.copy,
        tally.publishing,
        tally.must_commit,
        tally.cut_gap,
        *_fixed(tally.loss, world_size),
        *(number for metric in tally.metrics for number in _fixed(metric, world_size)),
        *tally.denominators,
    ]


def _decode(values: list[int], num_metrics: int) -> Tally:
    samples, sum_high, sum_low, place_high, place_low, *flags = values
    stop, failed, report, commit, written, sealed, silent, copy, publishing, must, cut_gap, *rest = flags
    reals, denominators = rest[: 2 + 2 * num_metrics], rest[2 + 2 * num_metrics :]
    loss, *metrics = map(_real, reals[::2], reals[1::2])
    return Tally(
        denominators=tuple(denominators),
        samples=samples,
        loss=loss,
        metrics=tuple(metrics),
        check_sum=(sum_high * 2**32 + sum_low) % 2**64,
        placement=(place_high * 2**32 + place_low) % 2**64,
        stop=stop,
        failed=failed,
        report=report,
        commit=commit,
        written=written,
        sealed=sealed,
        silent=silent,
        copy=copy,
        publishing=publishing,
        must_commit=must,
        cut_gap=cut_gap,
    )


def _halves(value: int) -> tuple[int, int]:
    """64 bits as two numbers, whose sums over workers never overflow an int64."""
    return divmod(value % 2**64, 2**32)


def _fixed(value: float, world_size: int) -> tuple[int, int]:
    """A number in units, and 1 if it is too large or not finite, else 0."""
    finite = math.isfinite(value) and abs(value) < _LARGEST_LOSS / world_size
    return (round(value / _LOSS_UNIT) if finite else 0), int(not finite)


def _real(units: int, not_finite: int) -> float:
    return math.nan if not_finite else units * _LOSS_UNIT
