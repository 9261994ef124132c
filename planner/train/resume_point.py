"""Where a generation begins: values that `planner.train.resume` makes."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.events.event import Event
from planner.store.records import Manifest
from planner.train.checkpoints.from_memory import HeldStep


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where this generation begins."""

    generation: int
    run_id: str
    step: int
    cursor: int
    parent: str
    parent_sha256: str
    head: str
    changed: tuple[Event, ...]
    """what differs from the run so far"""
    launch_id: str
    launched_s: float
    """when the driver of the launch started, in seconds since the epoch. 0 if not known"""
    is_held: bool = False
    """whether the step was only held: no commit has it under the name `parent`"""
    durable_step: int
    """the newest durable step of the lineage. Before `step` if that was only held"""
    num_recorded: int = 0
    """steps of the run on record when this generation began. 0 if they cannot be read"""
    has_job: bool = False
    """whether the run's folder is known to have the job's file"""

    @property
    def num_again(self) -> int:
        """Steps on record that this generation does again."""
        return max(self.num_recorded - self.step, 0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a generation resumes from. Its number may still be being claimed."""

    start: ResumePoint
    """of generation 0 until `finish`"""
    manifest: Manifest | None
    """of the commit or of the held step. None for a new run"""
    held: HeldStep | None
    """where the copies are, if the generation loads from memory"""
    finish: Callable[[], ResumePoint]
    """waits for the claim, and returns the start with the generation's number. Collective. It raises a PlannerError or
    MemoryLost on every worker"""
