"""The training loop of one generation. This is the main path of training. Read it from top to bottom.

At every step, the workers together use the samples at positions [cursor, cursor + G) of the order, each exactly once,
in A rounds. The gradient is the mean over the whole global batch: the loss of a micro-batch is divided by the global
count, and FSDP sums over workers and rounds.

One step on one worker, in the order of `Loop._steps`. Names are in `planner/train/`:

    wait for the control message: counts of this step, evidence of the last      control.Pending.wait
        record the last step, and report its metrics                             step_records.StepRecords.record
        go on with the commit in flight                                          saves.Saves.advance
        begin a commit or a copy in memory, if one is due                        saves.Saves.save
        evaluate, if it is due                                                   journal.Journal.evaluate
        stop, if any worker asked for it or failed                               Loop.outcome
    begin to load the next step, on a thread or in processes                     prefetch.Prefetcher.start
    A rounds: forward, backward, each with the seed of its first sample          optimizer_step.accumulate
        FSDP sums gradients into the shards                                      exact.gradient_sums.FloatSums
        (or integers are summed in its place: bitwise)                           exact.gradient_sums.FixedPointSums
    between rounds: abandon the step, if any worker was asked for that           cuts.Cuts.leave_before
        then drop it, and go to the stop, with the step before as the last       Loop._abandon
    repeat the rounds, if a gradient was beyond the integers' range: bitwise     Loop._gradients
    wait for the rows of the next step, count them                               Loop._tally
    start the control message: evidence of this step, counts of the next         control.start
    clip by the global norm, optimizer step, at the step's learning rate         step_update.Updater.update
"""

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from torch import Tensor, nn

from planner.base import progress_counter
from planner.errors import PlannerError
from planner.events.training import ObjectiveRemark
from planner.job import Job
from planner.job.step_schedule import StepSchedule
from planner.plan import Plan
from planner.plan.by_length import ByLength, placement
from planner.train import control
from planner.train.batches import LoadedStep, Loader, MicroBatch
from planner.train.collective_timeout import CollectiveTimeout
from planner.train.collectives import reshard
from planner.train.control import Tally
from planner.train.cuts import Cuts
from planner.train.hooks import GenerationEnd, Hooks, PassCounts
from planner.train.journal import Journal
from planner.train.meter import Meter
from planner.train.objectives import CoupledObjective, Objective, denominators, prepared
from planner.train.optimizer_step import Step, accumulate
from planner.train.prefetch import Prefetcher
from planner.train.resume_point import ResumePoint
from planner.train.saves import Saves
from planner.train.state import TrainState
from planner.train.step_records import Evidence, StepRecords
from planner.train.step_update import Updater
from planner.train.world import World, synchronize


class Loop:
    """The steps of one generation. It writes records through the journal."""

    def __init__(
        self,
        *,
        job: Job,
        world: World,
        plan: Plan,
        state: TrainState,
        objective: Objective,
        loader: Loader,
        journal: Journal,
        saves: Saves,
        hooks: Hooks,
        start: ResumePoint,
        lengths: StepSchedule,
        meter: Meter,
    ) -> None:
        self._job, self._world, self._plan = job, world, plan
        self._state, self._objective = state, objective
        self._loader, self._journal, self._saves = loader, journal, saves
        self._hooks, self._start = hooks, start
        self._lengths, self._total_steps = lengths, lengths.total_steps
        self._meter = meter
        self._updater = Updater(
            job=job,
            world=world,
            state=state,
            before=saves.before_update,
            hooks=hooks,
            lengths=lengths,
            note=journal.note,
        )
        self._records = StepRecords(
            world=world,
            journal=journal,
            objective=objective,
            meter=meter,
            hooks=hooks,
            total_steps=lengths.total_steps,
            num_again=start.num_again,
            plan=plan,
        )
        self._cuts, self._abandoned_rounds = Cuts(world, hooks), 0
        self._passes: Callable[[], int] = _PassCounter(state.model)
        self._step = self._repeated_steps = 0
        self.batches: Sequence[MicroBatch] = ()
        """this worker's micro-batches of the step that it computes"""
        self._has_remarked = False
        self._eval_s = self._durable_after_s = 0.0
        self._collective_timeout = CollectiveTimeout(
            world.set_timeout, has_eval=job.eval.is_on, first_s=world.collectives_s
        )

    def run(self) -> GenerationEnd:
        """Train until the end or until a worker is asked to stop.

        Raises:
            PlannerError: the same error on every worker.
        """
        model = self._state.model
        for work in self.steps():
            self._remark(work)
            accumulate(model, prepared(self._world, model, self._objective, work.batches, work.totals), work)
        return self.outcome

    def _remark(self, work: Step) -> None:
        """Record the objective's first remark on a global batch. Later ones are dropped."""
        if self._has_remarked or not isinstance(self._objective, CoupledObjective):
            return
        if remark := self._objective.remark(work.totals):
            self._journal.note(ObjectiveRemark(step=work.number, text=remark))
            self._has_remarked = True

    @property
    def largest_evaluated(self) -> int:
        """The largest micro-batch of an evaluation, in samples. 0 without held-out samples."""
        return self._journal.largest_evaluated

    @property
    def outcome(self) -> GenerationEnd:
        """Where the generation stands or ended."""
        return GenerationEnd(
            step=self._step,
            total_steps=self._total_steps,
            repeated_steps=self._repeated_steps,
            commit_s=self._saves.last_s,
            durable_after_s=self._durable_after_s,
            is_held=self._saves.is_held,
            abandoned_rounds=self._abandoned_rounds,
        )

    def steps(self) -> Iterator[Step]:
        """Yield one Step at a time. The caller computes all of its gradients before requesting the next one.

        Raises:
            PlannerError: the same error on every worker.
        """
        size, start = self._plan.global_batch, self._start
        cursors = range(start.cursor, start.cursor + (self._total_steps - start.step) * size, size)
        prefetcher = Prefetcher(
            self._loader.load, cursors, processes=self._job.workers.loader_processes, device=self._world.device
        )
        try:
            yield from self._steps(prefetcher, start.step, start.cursor)
        finally:
            prefetcher.close()

    def _steps(self, prefetcher: Prefetcher, step: int, cursor: int) -> Iterator[Step]:
        self._step = step
        evidence: Evidence | None = None
        loaded, failure = ready(prefetcher.start()) if step < self._total_steps else (LoadedStep(), None)
        # It brings the counts that the first step's losses are divided by.
        pending = self._without_evidence(step, loaded.batches, failure)
        while True:
            totals = pending.wait()
            last, ended_s = step >= self._total_steps or totals.stop > 0 or totals.failed > 0, time.monotonic()
            # Before anything is saved: a manifest names the ledger's head at its own step, this record included.
            if evidence is not None:
                with self._saves.landing():
                    self._record(evidence, totals, step, cursor, is_last=last)
            # Before `save`: at most one commit is in flight, and this may be where it lands.
            self._saves.advance(totals)
            self._saves.save(step, cursor, totals, is_last=last)
            # The next generation begins at the step where this one stops, and evaluates there. So a stop does not wait
            # for it.
            if step == self._total_steps or (not last and step % self._lengths.eval_every == 0):
                started_s = time.monotonic()
                with self._saves.landing():
                    self._journal.evaluate(step, self._objective)
                self._eval_s = time.monotonic() - started_s
            # After the save: the steps before the failure are complete on all workers, and are kept.
            if totals.failed:
                self._world.agree(partial(_raise, failure or self._failure))
            if last:
                self._durable_after_s = time.monotonic() - ended_s
                return

            started_s = time.monotonic()
            self._meter.begin_step(loaded)
            self.batches = loaded.batches
            # From here on, `step` and `cursor` are those after this step, as records and commits name them.
            step, cursor = step + 1, cursor + self._plan.global_batch
            # Before the gradients: the rows of the step after this one are read while this one computes.
            upcoming = prefetcher.start() if step < self._total_steps else None
            gradients = yield from self._gradients(step - 1, loaded.batches, totals)
            if gradients is None:
                # The end is that of a stop before this step. The step before it is on record.
                step, cursor, evidence, failure = step - 1, cursor - self._plan.global_batch, None, None
                self._abandon()
                pending = self._without_evidence(step, [], None)
                continue
            parts, check_sum, work = gradients
            # Only now: a user's loop that breaks off within a step has not done it.
            self._step = step
            done = loaded
            # The message carries the next step's counts, so it waits for the rows, also on a slow disk.
            loaded, failure = ready(upcoming) if upcoming else (LoadedStep(), None)
            self._meter.watch.lap("data")
            # Before the update: the optimizer computes while gloo sums.
            pending = control.start(
                self._world, self._tally(step, done.batches, parts, check_sum, loaded.batches, failure)
            )
            self._meter.watch.skip()
            with self._saves.landing():
                update = self._updater.update(step - 1, work)
            self._meter.watch.lap("update")
            evidence = Evidence(update=update, denominators=totals.denominators, started_s=started_s, costs=done.costs)

    @property
    def _failure(self) -> PlannerError | None:
        """The error after which this worker cannot go on."""
        return self._journal.failure or self._saves.failure

    def _gradients(
        self, number: int, batches: list[MicroBatch], totals: Tally
    ) -> Generator[Step, None, tuple[tuple[float, ...], int, PassCounts] | None]:
        """Compute the gradients into the shards. Returns this worker's parts of loss and metrics, checksum and work.

        If a gradient exceeds the range of its fixed point, all workers repeat the step from the same weights. None if
        all workers have abandoned the step, of which nothing is left in model and sums.
        """
        before, backward_passes = self._passes(), 0
        sums_before = {name: value.clone() for name, value in self._state.sums.state().items()}
        self._cuts.begin_step(totals.cut_gap)
        for attempt in itertools.count(1):
            step = Step(
                number=number,
                model=self._state.model,
                sums=self._state.sums,
                batches=batches,
                totals=totals.denominators,
                seed=self._job.train.seed,
                watch=self._meter.watch,
                cuts=self._cuts,
            )
            yield step
            if step.is_cut:
                self._abandoned_rounds = backward_passes + step.num_backward
                self._drop_gradients(sums_before)
                return None
            parts, check_sum = step.result()
            backward_passes += step.num_backward
            is_settled = self.settle()
            self._meter.watch.lap("backward")
            if is_settled:
                # A user's own loop may call its model any number of times. A micro-batch has one backward.
                passes = backward_passes if self._job.is_own else self._passes() - before
                return parts, check_sum, PassCounts(forward_passes=passes, attempts=attempt)
            self._repeated_steps += 1
            # None, not zero: FSDP would add to a gradient that is there, and memory is free while the step is repeated.
            self._state.model.zero_grad(set_to_none=True)
        raise AssertionError  # the loop above has no other end

    def _drop_gradients(self, sums_before: Mapping[str, Tensor]) -> None:
        """Leave model and sums as if the step had not begun."""
        # FSDP may still be summing what the last round has begun.
        synchronize(self._world.device)
        model = self._state.model
        self._state.sums.abandon(sums_before)
        model.set_is_last_backward(True)  # type: ignore[operator]
        model.zero_grad(set_to_none=True)
        reshard(model)

    def _abandon(self) -> None:
        """Record what is left to record of the steps before the one that was abandoned."""
        with self._saves.landing():
            for event in self._hooks.events():
                self._journal.note(event)
            for measurement in self._meter.drop_step():
                self._journal.record(measurement)

    def settle(self) -> bool:
        """Finish the step's sums. False if a gradient was beyond the integers' range, so that the step is repeated."""
        return self._state.sums.settle()

    def _without_evidence(self, step: int, upcoming: list[MicroBatch], failure: PlannerError | None) -> control.Pending:
        """Start a control message that follows no step."""
        # All messages of a generation have the same length: an all-reduce needs that on all workers.
        nothing = (0.0,) * (1 + len(self._objective.metrics))
        return control.start(self._world, self._tally(step, [], nothing, 0, upcoming, failure))

    def _tally(
        self,
        step: int,
        done: list[MicroBatch],
        parts: tuple[float, ...],
        check_sum: int,
        upcoming: list[MicroBatch],
        failure: PlannerError | None,
    ) -> Tally:
        return Tally(
            denominators=denominators(self._objective, upcoming),
            samples=sum(len(batch.rows) for batch in done),
            loss=parts[0],
            metrics=parts[1:],
            check_sum=check_sum,
            placement=self._placement(done),
            stop=int(self._hooks.should_stop(step) or self._abandoned_rounds > 0),
            failed=int(failure is not None or self._failure is not None),
            report=int(self._records.is_report_due),
            cut_gap=self._cuts.first_gap(len(upcoming)),
            **self._saves.said(step),
        )

    def _placement(self, done: list[MicroBatch]) -> int:
        """What this worker computed in which round. 0 if that follows from the plan alone."""
        if not isinstance(self._plan, ByLength):
            return 0
        return placement(self._world.rank, [batch.rows for batch in done])

    def _record(self, evidence: Evidence, totals: Tally, step: int, cursor: int, *, is_last: bool) -> None:
        """Record the completed step, once all workers' parts are summed."""
        record = self._records.record(evidence, totals, step, cursor, is_last=is_last)
        times = self._saves.times(step, totals, is_last=is_last)
        self._collective_timeout.did_step(record.seconds, times.commit_s, self._eval_s)
        for event in (*self._hooks.events(), *self._saves.did_step(record.seconds)):
            self._journal.note(event)
        if totals.report or is_last:
            self._records.report(record, times, evidence.costs, eval_s=self._eval_s, is_last=is_last)


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


def ready(future: "Future[LoadedStep]") -> tuple[LoadedStep, PlannerError | None]:
    """The loaded step, or the error. The control message reports it, so that all workers stop together."""
    try:
        return future.result(), None
    except PlannerError as error:
        return LoadedStep(), error


def _raise(failure: PlannerError | None) -> None:
    if failure is not None:
        raise failure
