"""The callbacks that a generation gets from its caller, and the result that it returns. Loads without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # drivers import this file without torch
    from planner.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class PassCounts:
    """The work of one step on this worker, as counted while it ran."""

    forward_passes: int
    """forward passes of training with ghosts and repetitions. In a user's own loop, micro-batches with a backward"""
    attempts: int
    """1 plus the times that a gradient exceeded its fixed point (a run's first step always does, once)"""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The callbacks by which the caller of a generation observes and stops its loop."""

    report: Callable[[dict[str, Any]], None] = lambda _metrics: None
    """called on every worker at the same step, about once a second"""
    should_stop: Callable[[int], bool] = lambda _step: False
    """called before every step with its number. If it returns true on one worker, all stop before that step"""
    messages: Callable[[], Sequence[str]] = lambda: ()
    """called on every worker after every step. The returned messages go into the ledger"""
    observe: Callable[[int, "TrainState", PassCounts], None] = lambda _step, _state, _work: None
    """called on every worker after a step's gradient is computed and before the weights are updated. If the step is
    skipped, after the gradient is dropped"""


@dataclass(frozen=True, kw_only=True)
class GenerationEnd:
    """Where a generation ended."""

    step: int
    total_steps: int
    repeated_steps: int
    """steps done again because a gradient exceeded its fixed point (a run's first always, to learn the magnitudes)"""
    commit_s: float = 0.0
    """seconds of the last commit. 0 if none was made"""

    @property
    def finished(self) -> bool:
        """Whether the job is complete, not just stopped."""
        return self.step >= self.total_steps
