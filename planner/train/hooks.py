"""What a generation takes from its caller besides the launch, and what it gives back. Loads without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # drivers import this file, and have no use for torch
    from planner.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one step took on this worker, as it was counted and not as it was planned."""

    forward_passes: int
    """of training, ghosts and repetitions included; in a loop of the user's own, micro-batches with their backward"""
    attempts: int
    """1, and one more for each time that a gradient outgrew its fixed point (a generation's very first always does)"""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """How the caller of a generation observes and steers its loop."""

    report: Callable[[dict[str, Any]], None] = lambda _metrics: None
    """called on every worker at the same step, about once a second"""
    should_stop: Callable[[int], bool] = lambda _step: False
    """asked before every step, with its number; one worker's yes stops all of them before it"""
    messages: Callable[[], Sequence[str]] = lambda: ()
    """asked on every worker after every step; what it says goes into the ledger"""
    observe: Callable[[int, "TrainState", Work], None] = lambda _step, _state, _work: None
    """called on every worker when a step's gradient is ready and the weights are not updated yet; if the step is
    skipped, when the gradient is gone"""


@dataclass(frozen=True, kw_only=True)
class GenerationEnd:
    """Where a generation ended."""

    step: int
    total_steps: int
    repeated_steps: int
    """steps done again because a gradient outgrew its fixed point (the first one always, to learn the magnitudes)"""
    commit_s: float = 0.0
    """seconds of the last commit; 0 if none was made"""

    @property
    def finished(self) -> bool:
        """Whether the job is done, and not merely stopped."""
        return self.step >= self.total_steps
