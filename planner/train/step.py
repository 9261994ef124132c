"""The heart of an optimizer step: all rounds of one worker, gradients summed exactly over rounds and workers."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from planner.base import work_counter
from planner.errors import TrainingFailed
from planner.train import control
from planner.train.batches import MicroBatch
from planner.train.exact.gradient_sums import GradientSums
from planner.train.objectives import Objective


class Step:
    """One optimizer step of one worker, while its gradient is computed.

        for batch in step.micro_batches():      # one per round, as many on every worker
            step.backward(loss_sum(model, batch))

    `totals` are the denominators over the *whole* global batch. Each micro-batch's sums are divided by them and
    gradients are summed over workers, so what stands in the shards afterwards is the gradient of the mean over the
    global batch, whatever the split.
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
    ) -> None:
        self.number = number
        """of the optimizer step, from 0"""
        self.totals = totals
        self.batches = batches
        """this worker's, one per round"""
        self._model, self._sums, self._seed = model, sums, seed
        self._round = 0
        self._parts: list[Tensor] = []
        self._check_sum = 0

    def micro_batches(self) -> Iterator[Any]:
        """What this worker computes, one micro-batch after another. Every one wants its `backward`.

        Random numbers drawn in between depend on the run's seed and the micro-batch, never on the worker.

        Raises:
            TrainingFailed: one got none.
        """
        if self._round:
            raise TrainingFailed(f"step {self.number}: its micro-batches were asked for twice")
        self._sums.begin()
        for number, batch in enumerate(self.batches, 1):
            self._round = number
            if number == len(self.batches):
                self._sums.last_round()
            self._model.set_is_last_backward(number == len(self.batches))  # type: ignore[operator]
            seed_randomness(self._seed, batch.position)
            yield batch.content
            self._require_backward()

    def backward(self, *loss_sums: Tensor) -> None:
        """Backward through a micro-batch's loss: the sum over its items, not the mean; one for each denominator."""
        if len(loss_sums) != len(self.totals):
            raise TrainingFailed(
                f"step {self.number}: backward was given {len(loss_sums)} sums, and there are {len(self.totals)} "
                "denominators"
            )
        parts = [value / max(total, 1) for value, total in zip(loss_sums, self.totals, strict=True)]
        self.backward_part(parts[0] if len(parts) == 1 else torch.stack(parts).sum())

    def backward_part(self, part: Tensor) -> None:
        """The same for what `Objective.loss` returns: sums that were divided by `totals` already, metrics behind it."""
        if len(self._parts) != self._round - 1:
            raise TrainingFailed(f"step {self.number}: call backward once for each micro-batch")
        batch = self.batches[self._round - 1]
        # A ghost computes something, since FSDP's collectives want every worker, and it counts for nothing.
        part = (part if batch.rows else part * 0.0).view(-1)
        part[0].backward()  # type: ignore[no-untyped-call]
        work_counter.count_work()
        self._parts.append(part.detach())
        self._check_sum += batch.check_sum()

    def result(self) -> tuple[tuple[float, ...], int]:
        """This worker's parts of the loss and of the metrics behind it, and its samples' checksums.

        Those are of the very values that entered the forward pass.

        Raises:
            TrainingFailed: not all micro-batches were computed.
        """
        if len(self._parts) != len(self.batches):
            raise TrainingFailed(
                f"step {self.number}: {len(self._parts)} of {len(self.batches)} micro-batches were computed; go "
                "through all of step.micro_batches() and call step.backward for each"
            )
        # One wait for the device per step.
        return control.exact_sums(torch.stack(self._parts)), self._check_sum

    @property
    def num_backward(self) -> int:
        """Backward passes so far."""
        return len(self._parts)

    def _require_backward(self) -> None:
        if len(self._parts) != self._round:
            raise TrainingFailed(f"step {self.number}: micro-batch {self._round} got no step.backward")


def accumulate(model: nn.Module, objective: Objective, step: Step) -> None:
    """Forward and backward over all of a step's micro-batches by an objective of ours."""
    for batch in step.micro_batches():
        step.backward_part(objective.loss(model, batch, step.totals))


def seed_randomness(seed: int, position: int) -> None:
    """Dropout's key is the run's seed and the position of the micro-batch's first sample, never the worker.

    The position grows from step to step, so no mask comes twice; and it does not depend on who computes it.
    """
    words = f"dropout {seed} {position}".encode()
    torch.manual_seed(int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little"))
