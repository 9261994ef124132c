"""The end of a step: the gradient is clipped and the optimizer steps, or the step is skipped."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import TrainingFailed
from planner.events.event import Event
from planner.events.training import StepSkipped
from planner.job import Job
from planner.job.gradient import gradient_rule
from planner.job.step_schedule import StepSchedule, learning_rate
from planner.train import optimize
from planner.train.hooks import Hooks, PassCounts
from planner.train.state import TrainState
from planner.train.world import World
from planner.wording.training import gradient_text


@dataclass(frozen=True, kw_only=True)
class Update:
    """The result of a step's optimizer update."""

    grad_norm: float
    """before clipping. 0 if the step was skipped"""
    lr: float
    skipped: bool


class Updater:
    """Updates the weights. All workers call it at the same step.

    Args:
        job: says how to clip, and what to do if a gradient is not finite.
        world: the workers.
        state: with the gradients in its shards.
        before: called before the weights change.
        hooks: observe each gradient.
        lengths: the learning rate's schedule.
        note: writes an event into the ledger.
    """

    def __init__(
        self,
        *,
        job: Job,
        world: World,
        state: TrainState,
        before: Callable[[], None],
        hooks: Hooks,
        lengths: StepSchedule,
        note: Callable[[Event], None],
    ) -> None:
        self._job, self._world, self._state = job, world, state
        self._rule = gradient_rule(job)
        self._before, self._hooks, self._lengths, self._note = before, hooks, lengths, note

    def update(self, step: int, work: PassCounts) -> Update:
        """Clip the gradient and step the optimizer, or skip the step if its gradient is not finite.

        Raises:
            TrainingFailed: on every worker, if the gradient is not finite and `train.non_finite` is not skip. The
                weights are unchanged.
        """
        lr = self._learning_rate(step)
        # Also without clipping: it shows whether the gradient is finite, and is recorded.
        grad_norm = self._state.sums.norm()
        if not math.isfinite(grad_norm):
            # All workers have the same norm, so all of them are here when `_not_finite` gathers.
            skipped = StepSkipped(step=step, norm="nan" if math.isnan(grad_norm) else "inf", tensor=self._not_finite())
            if self._rule.non_finite == "stop":
                raise TrainingFailed(
                    f"{gradient_text(skipped)}, and the weights were not updated. Lower the learning rate, clip, check "
                    "this step's samples, or skip such steps with train.non_finite: skip"
                )
            self._note(skipped)
            # Dropped before `observe`, because a NaN's bits depend on the order of the sum.
            self._state.model.zero_grad(set_to_none=True)
            self._hooks.observe(step, self._state, work)
            return Update(grad_norm=0.0, lr=lr, skipped=True)
        optimize.clip_gradients(self._state.model, grad_norm, self._rule.clip_norm)
        self._hooks.observe(step, self._state, work)
        self._before()
        self._state.step()
        self._state.model.zero_grad(set_to_none=True)
        return Update(grad_norm=grad_norm, lr=lr, skipped=False)

    def _learning_rate(self, step: int) -> float:
        """Set and return the learning rate of this step. A user's own loop has already set it."""
        optimizer = self._state.optimizer
        if not self._job.is_own:
            optimize.set_learning_rate(optimizer, learning_rate(self._job.train, step, self._lengths))
        return float(optimizer.param_groups[0]["lr"])

    def _not_finite(self) -> str:
        """The name of the first tensor whose gradient is not finite on any worker. Empty: the norm itself overflows."""
        mine = optimize.not_finite(self._state.model)
        names = [name for part in self._world.gather(mine) for name in part]
        return names[0] if names else ""
