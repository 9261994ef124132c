"""The training loop of one generation. This is the main path of training. Read it from top to bottom.

At every step, the workers together use the samples at positions [cursor, cursor + G) of the order, each exactly once,
in A rounds. The gradient is the mean over the whole global batch: the loss of a micro-batch is divided by the global
count, and FSDP sums over workers and rounds.
"""

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import nn

from planner.base import progress_counter
from planner.errors import PlannerError, TrainingFailed
from planner.job import Job
from planner.job.step_schedule import StepSchedule, learning_rate
from planner.plan import Plan
from planner.store.records import StepRecord
from planner.train import control, optimize
from planner.train.batches import Loader, MicroBatch
from planner.train.collective_timeout import CollectiveTimeout
from planner.train.control import Tally
from planner.train.hooks import GenerationEnd, Hooks, PassCounts
from planner.train.objectives import CoupledObjective, Objective, denominators, named_metrics, prepared
from planner.train.optimizer_step import Step, accumulate
from planner.train.pace import Pace
from planner.train.prefetch import Prefetcher
from planner.train.state import TrainState
from planner.train.world import World

# Least time between reports of metrics to Ray: `ray.train.report` waits until the last one was collected.
_REPORT_INTERVAL_S = 1.0


class StepJournal(Protocol):
    """The records that a loop writes to the run's folder. All workers call each method but `note` together."""

    def note(self, message: str) -> None:
        """Record a message for people. Any worker may call it."""
        ...

    @property
    def failure(self) -> PlannerError | None:
        """The error after which this worker cannot write records, or None."""
        ...

    def record_step(self, record: StepRecord) -> None:
        """Record a completed step."""
        ...

    def evaluate(self, step: int, objective: Objective) -> None:
        """Evaluate on the held-out samples before step `step`."""
        ...

    def commit(self, step: int, cursor: int) -> None:
        """Commit all steps before step `step`."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Update:
    """The result of a step's optimizer update."""

    grad_norm: float
    """before clipping. 0 if the step was skipped"""
    lr: float
    skipped: bool


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """The facts of a step that are kept until its control message has been summed."""

    update: _Update
    denominators: tuple[int, ...]
    started_s: float


class Loop:
    """The steps of one generation. It writes records and commits through the journal."""

    def __init__(
        self,
        *,
        job: Job,
        world: World,
        plan: Plan,
        state: TrainState,
        objective: Objective,
        loader: Loader,
        journal: StepJournal,
        pace: Pace,
        hooks: Hooks,
        lengths: StepSchedule,
    ) -> None:
        self._job, self._world, self._plan = job, world, plan
        self._state, self._objective = state, objective
        self._loader, self._journal, self._pace, self._hooks = loader, journal, pace, hooks
        self._lengths, self._total_steps = lengths, lengths.total_steps
        self._reported_s = float("-inf")
        self._passes: Callable[[], int] = _PassCounter(state.model)
        self._step = self._repeated_steps = 0
        self._has_remarked = False
        self._commit_s = self._eval_s = 0.0
        self._collective_timeout = CollectiveTimeout(world.set_timeout, has_eval=job.eval.samples > 0)

    def run(self, step: int, cursor: int) -> GenerationEnd:
        """Train from `step`, which begins at position `cursor`, until the end or until a worker is asked to stop.

        Raises:
            PlannerError: the same error on every worker.
        """
        model = self._state.model
        for work in self.steps(step, cursor):
            self._remark(work)
            accumulate(model, prepared(self._world, model, self._objective, work.batches, work.totals), work)
        return self.outcome

    def _remark(self, work: Step) -> None:
        """Record the objective's first remark on a global batch. Later ones are dropped."""
        if self._has_remarked or not isinstance(self._objective, CoupledObjective):
            return
        if remark := self._objective.remark(work.totals):
            self._journal.note(f"step {work.number}: {remark}")
            self._has_remarked = True

    @property
    def outcome(self) -> GenerationEnd:
        """Where the generation stands or ended."""
        return GenerationEnd(
            step=self._step,
            total_steps=self._total_steps,
            repeated_steps=self._repeated_steps,
            commit_s=self._commit_s,
        )

    def steps(self, step: int, cursor: int) -> Iterator[Step]:
        """Yield one Step at a time. The caller computes all of its gradients before requesting the next one.

        Raises:
            PlannerError: the same error on every worker.
        """
        size = self._plan.global_batch
        cursors = range(cursor, cursor + (self._total_steps - step) * size, size)
        prefetcher = Prefetcher(
            self._loader.load, cursors, processes=self._job.workers.loader_processes, device=self._world.device
        )
        try:
            yield from self._steps(prefetcher, step, cursor)
        finally:
            prefetcher.close()

    def _steps(self, prefetcher: Prefetcher, step: int, cursor: int) -> Iterator[Step]:
        self._step = committed = step
        evidence: _Evidence | None = None
        batches, failure = _ready(prefetcher.start()) if step < self._total_steps else ([], None)
        nothing = (0.0,) * (1 + len(self._objective.metrics))
        pending = control.start(self._world, self._tally(step, 0, nothing, 0, batches, failure))
        while True:
            totals = pending.wait()
            if evidence is not None:
                self._record(evidence, totals, step, cursor)
            last = step >= self._total_steps or totals.stop > 0 or totals.failed > 0
            if step > committed and (last or totals.commit > 0):
                self._commit(step, cursor)
                committed = step
            if step == self._total_steps or (not last and step % self._lengths.eval_every == 0):
                started_s = time.monotonic()
                self._journal.evaluate(step, self._objective)
                self._eval_s = time.monotonic() - started_s
            if totals.failed:
                self._world.agree(partial(_raise, failure or self._journal.failure))
            if last:
                return

            started_s = time.monotonic()
            step, cursor = step + 1, cursor + self._plan.global_batch
            upcoming = prefetcher.start() if step < self._total_steps else None
            parts, check_sum, work = yield from self._gradients(step - 1, batches, totals)
            self._step = step
            samples = sum(len(batch.rows) for batch in batches)
            batches, failure = _ready(upcoming) if upcoming else ([], None)
            pending = control.start(self._world, self._tally(step, samples, parts, check_sum, batches, failure))
            update = self._update(step - 1, work)
            evidence = _Evidence(update=update, denominators=totals.denominators, started_s=started_s)

    def _commit(self, step: int, cursor: int) -> None:
        started_s = time.monotonic()
        self._journal.commit(step, cursor)
        self._commit_s = time.monotonic() - started_s
        self._pace.did_commit(step, self._commit_s)

    def _gradients(
        self, number: int, batches: list[MicroBatch], totals: Tally
    ) -> Generator[Step, None, tuple[tuple[float, ...], int, PassCounts]]:
        """Compute the gradients into the shards. Returns this worker's parts of loss and metrics, checksum and work.

        If a gradient exceeds the range of its fixed point, all workers repeat the step from the same weights.
        """
        before, backward_passes = self._passes(), 0
        for attempt in itertools.count(1):
            step = Step(
                number=number,
                model=self._state.model,
                sums=self._state.sums,
                batches=batches,
                totals=totals.denominators,
                seed=self._job.train.seed,
            )
            yield step
            parts, check_sum = step.result()
            backward_passes += step.num_backward
            if self._state.sums.settle():
                # A user's own loop may call its model any number of times. A micro-batch has one backward.
                passes = backward_passes if self._job.is_own else self._passes() - before
                return parts, check_sum, PassCounts(forward_passes=passes, attempts=attempt)
            self._repeated_steps += 1
            self._state.model.zero_grad(set_to_none=True)
        raise AssertionError  # the loop above has no other end

    def _update(self, step: int, work: PassCounts) -> _Update:
        """Clip the gradient and step the optimizer, or skip the step if its gradient is not finite.

        Raises:
            TrainingFailed: on every worker, if the gradient is not finite and `train.non_finite` is not skip. The
                weights are unchanged.
        """
        lr = self._learning_rate(step)
        grad_norm = self._state.sums.norm()
        if not math.isfinite(grad_norm):
            problem = f"step {step}: the gradient's norm is {grad_norm}, in {self._not_finite()}"
            if self._job.train.non_finite == "stop":
                raise TrainingFailed(
                    f"{problem}, and the weights were not updated. Lower the learning rate, clip, check this step's "
                    "samples, or skip such steps with train.non_finite: skip"
                )
            self._journal.note(f"{problem}. The step was skipped (train.non_finite: skip)")
            # Dropped before `observe`, because a NaN's bits depend on the order of the sum.
            self._state.model.zero_grad(set_to_none=True)
            self._hooks.observe(step, self._state, work)
            return _Update(grad_norm=0.0, lr=lr, skipped=True)
        optimize.clip_gradients(self._state.model, grad_norm, self._job.train.clip_norm)
        self._hooks.observe(step, self._state, work)
        self._state.step()
        self._state.model.zero_grad(set_to_none=True)
        return _Update(grad_norm=grad_norm, lr=lr, skipped=False)

    def _learning_rate(self, step: int) -> float:
        """Set and return the learning rate of this step. A user's own loop has already set it."""
        optimizer = self._state.optimizer
        if not self._job.is_own:
            optimize.set_learning_rate(optimizer, learning_rate(self._job.train, step, self._lengths))
        return float(optimizer.param_groups[0]["lr"])

    def _not_finite(self) -> str:
        """The name of the first tensor whose gradient is not finite on any worker."""
        mine = optimize.not_finite(self._state.model)
        names = [name for part in self._world.gather(mine) for name in part]
        return names[0] if names else "no single tensor (the norm itself overflows)"

    def _tally(
        self,
        step: int,
        samples: int,
        parts: tuple[float, ...],
        check_sum: int,
        upcoming: list[MicroBatch],
        failure: PlannerError | None,
    ) -> Tally:
        report_due = self._world.rank == 0 and time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S
        return Tally(
            denominators=denominators(self._objective, upcoming),
            samples=samples,
            loss=parts[0],
            metrics=parts[1:],
            check_sum=check_sum,
            stop=int(self._hooks.should_stop(step)),
            failed=int(failure is not None or self._journal.failure is not None),
            report=int(report_due),
            commit=int(self._world.rank == 0 and self._pace.due(step)),
        )

    def _record(self, evidence: _Evidence, totals: Tally, step: int, cursor: int) -> None:
        """Record the completed step, once all workers' parts are summed."""
        if not (math.isfinite(totals.loss) or evidence.update.skipped):
            raise TrainingFailed(
                f"step {step - 1}: the loss is not finite although its gradient was, so the run stops at its last "
                "commit. Lower the learning rate, or check this step's samples"
            )
        record = StepRecord(
            step=step - 1,
            cursor=cursor,
            samples=totals.samples,
            tokens=evidence.denominators[0],
            checksum=f"{totals.check_sum:016x}",
            loss=0.0 if evidence.update.skipped else totals.loss,
            grad_norm=evidence.update.grad_norm,
            lr=evidence.update.lr,
            metrics=named_metrics(self._objective, totals.metrics, evidence.denominators),
            skipped=evidence.update.skipped,
            seconds=time.monotonic() - evidence.started_s,
        )
        self._journal.record_step(record)
        self._collective_timeout.did_step(record.seconds, self._commit_s, self._eval_s)
        for message in self._hooks.messages():
            self._journal.note(message)
        if news := self._pace.did_step(record.seconds):
            self._journal.note(news)
        if totals.report or step == self._total_steps:
            self._reported_s = time.monotonic()
            self._hooks.report(
                {
                    **record.model_dump(),
                    "world_size": self._world.world_size,
                    "total_steps": self._total_steps,
                    # Times of the last commit and evaluation, 0 before the first.
                    "commit_s": self._commit_s,
                    "eval_s": self._eval_s,
                }
            )


class _PassCounter:
    """Counts the forward passes that a model does in training."""

    def __init__(self, model: nn.Module) -> None:
        self._count = 0
        model.register_forward_pre_hook(self._note)

    def _note(self, model: nn.Module, _inputs: object) -> None:
        progress_counter.count_work()
        self._count += model.training

    def __call__(self) -> int:
        """The passes so far."""
        return self._count


def _ready(future: "Future[list[MicroBatch]]") -> tuple[list[MicroBatch], PlannerError | None]:
    """The loaded micro-batches, or the error. The control message reports it, so that all workers stop together."""
    try:
        return future.result(), None
    except PlannerError as error:
        return [], error


def _raise(failure: PlannerError | None) -> None:
    if failure is not None:
        raise failure
