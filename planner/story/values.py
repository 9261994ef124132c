"""The values of a run's story. Times are seconds since the run began, unless a name says otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.story.capacity import RunCapacity
from planner.story.curves import Curve
from planner.story.run_story import RunStory

Cause = Literal["node lost", "another driver", "workers join", "notice", "workers leave", "restart"]
"""what ended one generation and began the next. How many workers join or leave is in the change"""


@dataclass(frozen=True, kw_only=True)
class Told:
    """An event of a generation."""

    event: str
    """its kind (`planner.events`). Empty in ledgers of formats 1 and 2, and if there is no such kind"""
    text: str
    """as people were told"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One generation that did a step: a fixed number of workers, from its first step to its last."""

    generation: int
    workers: int
    shares: tuple[tuple[int, int], ...]
    """`(workers, samples each)`, larger shares first"""
    rounds: float
    """per step, of its plan. By length: the measured mean, 0 if not known"""
    efficiency: float
    """of its plan: the fraction of the workers' time that computes samples. By length: as measured, 0 if not known"""
    start_s: float
    """when its first step began"""
    end_s: float
    """when its last step, commit or evaluation was done"""
    first_step: int
    end_step: int
    """half open: one past its last step"""
    kept_step: int
    """half open: one past its last step that counts. Later generations did the others again"""
    batch: Curve
    """samples that entered the forward pass, by time"""
    samples: int
    """of all its steps"""
    busy_s: float
    """of all its steps"""
    told: tuple["Told", ...]
    """its last events, oldest first"""
    by_length: bool = False
    """each step has a split of its own. Shares are those of samples of equal length"""

    @property
    def samples_per_s(self) -> float:
        """Over all its steps, without commits, evaluations and pauses."""
        return self.samples / max(self.busy_s, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Change:
    """Where one generation ended and the next one began."""

    at_s: float
    """when the earlier one ended"""
    resumed_s: float
    """when the first step of the later one began"""
    generation: int
    """the later one"""
    step: int
    """the first step of the later one"""
    before: int
    """workers of the earlier one"""
    after: int
    """workers of the later one"""
    again: int
    """steps that the later one did again"""
    from_memory: bool = False
    """the later one resumed from a step that was held and not durable"""
    cause: Cause
    reasons: tuple[str, ...]
    """messages on record"""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event on record, with the text that people were told."""

    time_s: float
    generation: int
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Commits:
    """The commits of a run."""

    number: int = 0
    """on record"""
    seconds: float = 0.0
    """for which training paused, all commits together"""
    most_at_risk_s: float = 0.0
    """the most seconds of steps that were not durable yet, which a crash at the wrong moment would lose"""
    unrecorded: tuple[int, ...] = ()
    """steps of further durable commits, ascending. A kill lost their records, so their times are not known"""
    cost: Curve = field(default_factory=Curve)
    """seconds for which each commit paused training, by step"""
    durable_after: Curve = field(default_factory=Curve)
    """seconds from the begin of each commit until it was durable, by step. Empty if not known"""
    at_risk: Curve = field(default_factory=Curve)
    """seconds of steps that were not durable just before each commit was, by step"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What only measurement records say. A curve is empty if it is not known."""

    tokens_per_s: Curve = field(default_factory=Curve)
    mean_tokens_per_s: float = 0.0
    """over all measured steps. 0 if not known"""
    mfu: Curve = field(default_factory=Curve)
    """fraction of the devices' peak FLOPs"""
    mean_mfu: float = 0.0
    """over all measured steps. 0 if not known"""
    memory_bytes: Curve = field(default_factory=Curve)
    """the largest of any worker so far"""
    step_parts: Mapping[str, float] = field(default_factory=dict)
    """data, forward, backward, update, communication -> seconds over all measured steps. Communication overlaps"""
    seconds: float = 0.0
    """of all measured steps"""


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What happened in a run, in bounded memory. Steps that were undone are in `phases` and in no curve by step."""

    run: str
    """its folder or URL"""
    name: str
    """of its newest job, or of its folder"""
    began_s: float = 0.0
    """in seconds since the epoch. 0 if nothing is on record"""
    end: RunStory
    """how it stood after the last record"""
    samples: int = 0
    """of the steps that count"""
    undone_steps: int = 0
    """steps whose work was lost. Later generations did them again"""
    undone_samples: int = 0
    global_batches: tuple[int, ...] = ()
    """in order, with one entry if it never changed"""
    hosts: tuple[str, ...] = ()
    """of the processes that began generations, as far as on record"""
    phases: tuple[Phase, ...] = ()
    changes: tuple[Change, ...] = ()
    events: tuple[Event, ...] = ()
    loss: Curve = field(default_factory=Curve)
    loss_by_samples: Curve = field(default_factory=Curve)
    loss_by_time: Curve = field(default_factory=Curve)
    held_out: Curve = field(default_factory=Curve)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """other values by step, by the name of their series, such as `train/lr` and `eval/accuracy`"""
    speed: Curve = field(default_factory=Curve)
    """samples per second of steps, by step"""
    commits: Commits = field(default_factory=Commits)
    measured: Measured = field(default_factory=Measured)
    versions: Mapping[str, str] = field(default_factory=dict)
    """of software, from the newest commit"""
    capacity: RunCapacity = field(default_factory=RunCapacity)
    """the nodes that it had"""

    @property
    def best_worker(self) -> tuple[float, int]:
        """The highest samples per second and worker of any phase, and that phase's number of workers."""
        # A phase of a few steps says little, so it counts only if there is no longer one.
        long = [phase for phase in self.phases if phase.end_step - phase.first_step >= _FEW_STEPS]
        best = max(long or self.phases, key=lambda phase: phase.samples_per_s / phase.workers, default=None)
        return (best.samples_per_s / best.workers, best.workers) if best else (0.0, 0)


_FEW_STEPS = 5
