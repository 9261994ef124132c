"""What is written down of a completed step: its records in the ledger, and the metrics that the controller gets."""

import math
import time
from dataclasses import dataclass

from planner.errors import TrainingFailed
from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.store.records import StepRecord
from planner.train.batches import StepCosts
from planner.train.control import Tally
from planner.train.hooks import Hooks
from planner.train.journal import Journal
from planner.train.meter import Meter
from planner.train.objectives import Objective, named_metrics
from planner.train.step_update import Update
from planner.train.world import World

# Least time between reports of metrics to Ray: `ray.train.report` waits until the last one was collected.
_REPORT_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts of a step that are kept until its control message has been summed."""

    update: Update
    denominators: tuple[int, ...]
    started_s: float
    """by `time.monotonic`"""
    costs: StepCosts | None
    """None unless lengths decide who computes what"""


@dataclass(frozen=True, kw_only=True)
class CommitTimes:
    """How far the commits are when a step is reported."""

    held_step: int
    """of the newest commit. It differs from `durable_step` while that is written"""
    copied_step: int
    """the newest step that all workers' keepers have in memory. 0 before the first"""
    durable_step: int
    commit_s: float
    """of the last commit's write. 0 before the first"""


class StepRecords:
    """Writes and reports the steps of one generation. All workers call it at the same step."""

    def __init__(
        self,
        *,
        world: World,
        journal: Journal,
        objective: Objective,
        meter: Meter,
        hooks: Hooks,
        total_steps: int,
        num_again: int,
        plan: Plan,
    ) -> None:
        self._world, self._journal, self._objective = world, journal, objective
        self._meter, self._hooks = meter, hooks
        self._total_steps, self._num_again = total_steps, num_again
        self._plan = plan
        # So that the first step is reported at once.
        self._reported_s = float("-inf")

    @property
    def is_report_due(self) -> bool:
        """Whether metrics are due. Rank 0 decides it."""
        return self._world.rank == 0 and time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S

    def record(self, evidence: Evidence, totals: Tally, step: int, cursor: int, *, is_last: bool) -> StepRecord:
        """Write the record of the step before `step`, once all workers' parts are summed, and return it.

        Raises:
            TrainingFailed: on every worker, if the loss is not finite although the gradient was.
        """
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
            placement=f"{totals.placement:016x}" if isinstance(self._plan, ByLength) else "",
            loss=0.0 if evidence.update.skipped else totals.loss,
            grad_norm=evidence.update.grad_norm,
            lr=evidence.update.lr,
            metrics=named_metrics(self._objective, totals.metrics, evidence.denominators),
            skipped=evidence.update.skipped,
            seconds=time.monotonic() - evidence.started_s,
        )
        self._journal.record(record)
        for measurement in self._meter.end_step(record, is_due=totals.report > 0, is_last=is_last):
            self._journal.record(measurement)
        return record

    def report(
        self, record: StepRecord, commits: CommitTimes, costs: StepCosts | None, *, eval_s: float, is_last: bool
    ) -> None:
        """Report a step's metrics to the caller of the generation.

        Args:
            record: of the step.
            commits: how far they are.
            costs: of the step, as in `Evidence`.
            eval_s: seconds of the last evaluation. 0 before the first.
            is_last: whether training ends after this step, so that only its commit is left to wait for.
        """
        self._reported_s = time.monotonic()
        self._hooks.report(
            {
                **record.model_dump(),
                **self._meter.newest,
                "world_size": self._plan.world_size,
                "max_micro": self._plan.max_micro,
                "max_tokens": self._plan.max_tokens if isinstance(self._plan, ByLength) else None,
                # By samples, all steps cost the same.
                "step_cost": costs.samples if costs else record.samples,
                "total_steps": self._total_steps,
                "num_again": self._num_again,
                "held_step": commits.held_step,
                "copied_step": commits.copied_step,
                "durable_step": commits.durable_step,
                "is_last": is_last,
                "commit_s": commits.commit_s,
                "eval_s": eval_s,
            }
        )
