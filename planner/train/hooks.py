"""The callbacks that a generation gets from its caller, and the result that it returns. Loads without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.events.event import Event
from planner.keeper.addresses import Keepers
from planner.plan.lowered_caps import LoweredCaps

if TYPE_CHECKING:  # drivers import this file without torch
    from torch import nn

    from planner.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class PassCounts:
    """The work of one step on this worker, as counted while it ran."""

    forward_passes: int
    """forward passes of training with ghosts and repetitions. In a user's own loop, micro-batches with a backward"""
    attempts: int
    """1 plus the times that a gradient exceeded its fixed point (a run's first step always does, once)"""


def never() -> bool:
    """Return false."""
    return False


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The callbacks by which the caller of a generation observes and stops its loop."""

    report: Callable[[dict[str, Any]], None] = lambda _metrics: None
    """called on every worker at the same step, about once a second"""
    should_stop: Callable[[int], bool] = lambda _step: False
    """called before every step with its number. If it returns true on one worker, all stop before that step"""
    should_cut: Callable[[], bool] = never
    """called on every worker while a step is computed, about once a second. If it returns true on one worker, all
    abandon the step at a round that they agree on, and stop before it. With `never`, no worker asks the others"""
    may_hold: Callable[[], bool] = lambda: False
    """whether a stop that this worker knows of may leave its last step in memory (`keepers`), without a commit. True
    while it knows of none. The step stays in memory only if this is true on all workers"""
    keepers: Callable[[], Keepers | None] = lambda: None
    """called at the begin of a generation, and again in a thread while a keeper is missing. None: keeps nothing"""
    collectives_s: Callable[[], float] = lambda: 0.0
    """called on every worker at the begin of a generation. Seconds that collectives must wait at least, until the
    generation has measured its own steps. 0: not known"""
    caps: Callable[[], LoweredCaps | None] = lambda: None
    """called on rank 0 at the begin of a generation: the caps that this run has lowered. None: none"""
    events: Callable[[], Sequence[Event]] = lambda: ()
    """called on every worker after every step. The returned events go into the ledger"""
    begin: Callable[["nn.Module"], None] = lambda _model: None
    """called on every worker with the sharded model, before the generation's first forward pass"""
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
    durable_after_s: float = 0.0
    """seconds from the end of the last step until it was durable. A commit in flight is waited for first"""

    is_held: bool = False
    """whether its last step is only in the keepers' memory, and no commit has it"""

    abandoned_rounds: int = 0
    """rounds that were computed of the step after the last one, which all workers abandoned. 0: there was none"""

    @property
    def finished(self) -> bool:
        """Whether the job is complete, not just stopped."""
        return self.step >= self.total_steps
