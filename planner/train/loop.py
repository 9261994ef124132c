"""The training loop of one generation: the one main path, read from top to bottom.

At every step t all workers use the samples at positions [cursor, cursor + G) of the order, each exactly once,
in A rounds. The gradient is the mean over the whole global batch: the loss of a micro-batch is divided by the
global count, and FSDP sums over workers and rounds.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from planner.errors import PlannerError, TrainingFailed
from planner.job import Job
from planner.plan import Plan
from planner.store.records import StepRecord
from planner.train import control, optimize
from planner.train.batches import Loader, MicroBatch, Prefetcher
from planner.train.control import Tally
from planner.train.objectives import Objective, denominators
from planner.train.step import accumulate
from planner.train.world import World

# Metrics go to Ray at most this often: `ray.train.report` waits until the last one was collected.
_REPORT_INTERVAL_S = 1.0


class Journal(Protocol):
    """What the loop tells the run's folder. Every method is called by every worker at the same step."""

    @property
    def failure(self) -> PlannerError | None:
        """Why this worker cannot write any more, if so."""
        ...

    def record_step(self, record: StepRecord) -> None:
        """A step is done."""
        ...

    def evaluate(self, step: int) -> None:
        """Measure the held-out loss before step `step`."""
        ...

    def commit(self, step: int, cursor: int) -> None:
        """Make everything up to step `step` permanent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the one who started this worker wants to hear and to say."""

    report: Callable[[dict[str, Any]], None] = lambda _metrics: None
    """called on every worker at the same step, about once a second"""
    should_stop: Callable[[], bool] = lambda: False
    """asked at every step; one worker's yes stops all of them at the same step"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where a generation ended."""

    step: int
    total_steps: int

    @property
    def finished(self) -> bool:
        """Whether the job is done, and not merely stopped."""
        return self.step >= self.total_steps


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What is known of a step when its gradients are done, kept until the control message has been summed."""

    grad_norm: float
    lr: float
    tokens: int
    started_s: float


class Loop:
    """Steps of one generation. Values in, records and commits out through the journal."""

    def __init__(
        self,
        *,
        job: Job,
        world: World,
        plan: Plan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        loader: Loader,
        journal: Journal,
        hooks: Hooks,
        total_steps: int,
    ) -> None:
        self._job, self._world, self._plan = job, world, plan
        self._model, self._optimizer, self._objective = model, optimizer, objective
        self._loader, self._journal, self._hooks = loader, journal, hooks
        self._total_steps = total_steps
        self._reported_s = float("-inf")

    def run(self, step: int, cursor: int) -> Outcome:
        """Train from `step`, whose first position is `cursor`, to the end or until somebody wants to stop.

        Raises:
            PlannerError: on every worker, the same one.
        """
        prefetcher = Prefetcher(self._loader)
        try:
            return self._run(prefetcher, step, cursor)
        finally:
            prefetcher.close()

    def _run(self, prefetcher: Prefetcher, step: int, cursor: int) -> Outcome:
        committed = step
        evidence: _Evidence | None = None
        batches, failure = _ready(prefetcher.start(cursor)) if step < self._total_steps else ([], None)
        pending = control.start(self._world, self._tally(0, 0.0, 0, batches, failure))
        while True:
            totals = pending.wait()
            if evidence is not None:
                self._record(evidence, totals, step, cursor)
            last = step >= self._total_steps or totals.stop > 0 or totals.failed > 0
            if step > committed and (last or step % self._job.checkpoint.every_steps == 0):
                self._journal.commit(step, cursor)
                committed = step
            if step == self._total_steps or (not last and step % self._job.eval.every_steps == 0):
                self._journal.evaluate(step)
            if totals.failed:
                self._world.agree(partial(_raise, failure or self._journal.failure))
            if last:
                return Outcome(step=step, total_steps=self._total_steps)

            started_s = time.monotonic()
            step, cursor = step + 1, cursor + self._plan.global_batch
            upcoming = prefetcher.start(cursor) if step < self._total_steps else None
            loss, check_sum = accumulate(self._model, self._objective, batches, totals.denominators)
            samples = sum(len(batch.rows) for batch in batches)
            batches, failure = _ready(upcoming) if upcoming else ([], None)
            pending = control.start(self._world, self._tally(samples, loss, check_sum, batches, failure))
            grad_norm, lr = self._update(step - 1)
            evidence = _Evidence(grad_norm=grad_norm, lr=lr, tokens=totals.denominators[0], started_s=started_s)

    def _update(self, step: int) -> tuple[float, float]:
        """Clip and step the optimizer: the gradient's norm before clipping, and the learning rate.

        Raises:
            TrainingFailed: on every worker, if the gradient is not finite; the weights are left as they were.
        """
        lr = optimize.learning_rate(self._job.train, step, self._total_steps)
        optimize.set_learning_rate(self._optimizer, lr)
        grad_norm = optimize.clip_gradients(self._model, self._job.train.clip_norm)
        if not math.isfinite(grad_norm):
            raise TrainingFailed(
                f"step {step}: the gradient's norm is {grad_norm} and the weights were left alone; "
                "lower the learning rate, clip, or look at this step's samples"
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return grad_norm, lr

    def _tally(
        self,
        samples: int,
        loss: float,
        check_sum: int,
        upcoming: list[MicroBatch],
        failure: PlannerError | None,
    ) -> Tally:
        report_due = self._world.rank == 0 and time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S
        return Tally(
            denominators=denominators(self._objective, upcoming),
            samples=samples,
            loss=loss,
            check_sum=check_sum,
            stop=int(self._hooks.should_stop()),
            failed=int(failure is not None or self._journal.failure is not None),
            report=int(report_due),
        )

    def _record(self, evidence: _Evidence, totals: Tally, step: int, cursor: int) -> None:
        """Write down the step that is done, now that all workers' parts are summed."""
        if not math.isfinite(totals.loss):
            raise TrainingFailed(f"step {step - 1}: the loss is not finite; nothing since the last commit is kept")
        record = StepRecord(
            step=step - 1,
            cursor=cursor,
            samples=totals.samples,
            tokens=evidence.tokens,
            checksum=f"{totals.check_sum:016x}",
            loss=totals.loss,
            grad_norm=evidence.grad_norm,
            lr=evidence.lr,
            seconds=time.monotonic() - evidence.started_s,
        )
        self._journal.record_step(record)
        if totals.report or step == self._total_steps:
            self._reported_s = time.monotonic()
            self._hooks.report({**record.model_dump(), "world_size": self._world.world_size})


def _ready(future: "Future[list[MicroBatch]]") -> tuple[list[MicroBatch], PlannerError | None]:
    """What was loaded, or why not: a failure travels in the control message, so that all workers stop as one."""
    try:
        return future.result(), None
    except PlannerError as error:
        return [], error


def _raise(failure: PlannerError | None) -> None:
    if failure is not None:
        raise failure
