"""The gradient of one optimizer step: all rounds of one worker, summed over rounds and workers."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from planner.base import progress_counter
from planner.errors import TrainingFailed
from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.cuts import Cuts
from planner.train.exact.gradient_sums import GradientSums
from planner.train.objectives import Objective
from planner.train.stopwatch import Stopwatch


class Step:
    """One optimizer step of one worker, while its gradient is computed.

        for batch in step.micro_batches():      # one per round, as many on every worker
            step.backward(loss_sum(model, batch))

    `totals` are the denominators over the *whole* global batch. Each micro-batch's sums are divided by them, and
    gradients are summed over workers. So the shards then hold the gradient of the mean over the global batch,
    independent of the split.
    """

    def __init__(
        self,
        *,
        number: int,
        model: nn.Module,
        sums: GradientSums,
        batches: Sequence[MicroBatch],
        totals: tuple[int, ...],
        seed: int,
        watch: Stopwatch,
        cuts: Cuts,
    ) -> None:
        self.number = number
        """number of the optimizer step, from 0"""
        self.totals = totals
        self.batches = batches
        """this worker's micro-batches, one per round"""
        self._model, self._sums, self._seed, self._watch = model, sums, seed, watch
        self._cuts = cuts
        self.is_cut = False
        """whether all workers have abandoned the step, so that its gradient is dropped and no step follows"""
        self._round = 0
        self._parts: list[Tensor] = []
        self._check_sum = 0

    def micro_batches(self) -> Iterator[Any]:
        """Yield this worker's micro-batches. Call `backward` once for each, before you request the next.

        Random numbers drawn in between depend on the run's seed and the micro-batch, but not on the worker. After the
        first one, they may end early on all workers, if a stop abandons the step (`is_cut`).

        Raises:
            TrainingFailed: a micro-batch got no `backward`, or the method was called twice.
        """
        if self._round:
            raise TrainingFailed(f"step {self.number}: step.micro_batches was called twice. Call it once per step")
        self._sums.begin()
        self._cuts.begin_rounds()
        for number, batch in enumerate(self.batches, 1):
            if self._cuts.leave_before(number - 1, len(self.batches)):
                self.is_cut = True
                return
            self._round = number
            if number == len(self.batches):
                self._sums.last_round()
            # FSDP waits for the reductions that it has begun only after the last backward pass.
            self._model.set_is_last_backward(number == len(self.batches))  # type: ignore[operator]
            seed_randomness(self._seed, batch.position)
            yield batch.content
            self._require_backward()

    def backward(self, *loss_sums: Tensor) -> None:
        """Run backward for a micro-batch. Pass sums over its items instead of means, one for each denominator.

        Raises:
            TrainingFailed: the number of sums is wrong, or the micro-batch already had its `backward`.
        """
        if len(loss_sums) != len(self.totals):
            raise TrainingFailed(
                f"step {self.number}: step.backward got {len(loss_sums)} sums for {len(self.totals)} denominators. "
                "Pass one sum for each"
            )
        # Divided before the backward pass: gradients are then only added, over rounds and workers.
        parts = [value / max(total, 1) for value, total in zip(loss_sums, self.totals, strict=True)]
        self.backward_part(parts[0] if len(parts) == 1 else torch.stack(parts).sum())

    def backward_part(self, part: Tensor) -> None:
        """Run backward for the result of `Objective.loss`: a loss that is already divided by `totals`, then metrics.

        Raises:
            TrainingFailed: the micro-batch already had its `backward`.
        """
        if len(self._parts) != self._round - 1:
            raise TrainingFailed(f"step {self.number}: step.backward must be called once for each micro-batch")
        batch = self.batches[self._round - 1]
        # A ghost is computed too, because FSDP's collectives need every worker, but its weight is zero.
        part = (part if batch.rows else part * 0.0).view(-1)
        self._watch.lap("forward")
        part[0].backward()  # type: ignore[no-untyped-call]
        self._watch.lap("backward")
        progress_counter.count_work()
        self._parts.append(part.detach())
        self._check_sum += batch.check_sum()

    def result(self) -> tuple[tuple[float, ...], int]:
        """This worker's parts of loss and metrics, and the sum of its samples' checksums.

        The checksums are of the values that entered the forward pass.

        Raises:
            TrainingFailed: not all micro-batches were computed.
        """
        if len(self._parts) != len(self.batches):
            raise TrainingFailed(
                f"step {self.number}: {len(self._parts)} of {len(self.batches)} micro-batches were computed. Iterate "
                "over all of step.micro_batches() and call step.backward for each"
            )
        # One wait for the device per step.
        parts = control.exact_sums(torch.stack(self._parts))
        self._cuts.end_rounds(len(self.batches))
        return parts, self._check_sum

    @property
    def num_backward(self) -> int:
        """Backward passes so far."""
        return len(self._parts)

    def _require_backward(self) -> None:
        if len(self._parts) != self._round:
            raise TrainingFailed(
                f"step {self.number}: micro-batch {self._round} got no step.backward. Call it once for each micro-batch"
            )


def accumulate(model: nn.Module, objective: Objective, step: Step) -> None:
    """Run forward and backward over all micro-batches of a step with one of planner's objectives."""
    for batch in step.micro_batches():
        step.backward_part(objective.loss(model, batch, step.totals))


def seed_randomness(seed: int, position: int) -> None:
    """Seed torch's generator, and so dropout, from the run's seed and the position of a micro-batch's first sample.

    The position increases from step to step, so no mask repeats. It does not depend on the worker.
    """
    key = f"dropout {seed} {position}".encode()
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    # torch.manual_seed also asks devices that nobody uses. Without CUDA that took 5 ms, more than a small micro-batch.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
