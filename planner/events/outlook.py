"""What a run waits for and does next: for the terminal and the live status. No ledger has these events."""

from typing import Literal

from planner.events.event import Event
from planner.events.stopping import StopNeeds

# -- what the controller does now


class Starts(Event, name="starts"):
    """A group of `size` workers starts, goes on after a stop, or loads its state."""

    size: int
    how: Literal["new", "after_stop", "loading"]


class WillStop(Event, name="will_stop"):
    """All workers stop at the same step, and more continue."""

    in_memory: bool
    most: int
    """of the next group"""


class WillStart(Event, name="will_start"):
    """The next group starts."""

    size: int
    planned: bool
    """the group before it has parked"""


class RunEnds(Event, name="run_ends"):
    """Everything that could be saved is committed."""


# -- what it waits for


class HoldLasts(Event, name="hold_lasts"):
    """A run without a group leaves places unused: a start with more than `most` workers failed."""

    most: int
    left_s: float


class FirstStepPending(Event, name="first_step_pending"):
    """The group has not done a step."""


class OldGroupEnds(Event, name="old_group_ends"):
    """The workers of the last group have not ended."""


class NoResize(Event, name="no_resize"):
    """The group is kept."""

    reason: Event


class Silence(Event, name="silence"):
    """No worker makes progress. planner ends the group after `limit_s`."""

    silence_s: float
    limit_s: float


class NoticeRuns(Event, name="notice_runs"):
    """Nodes of the group have notice, and the group still trains."""

    leaving: int
    """workers on these nodes"""
    size: int
    left_s: float | None
    """until the first node goes. None without a deadline"""
    stops_in_s: float | None
    """None: later, at a time that is not known yet"""
    room: int
    """workers that the other nodes have room for"""
    to: int | None
    """workers that continue. None: too few fit, so training continues as long as possible"""
    in_memory: bool
    """whether the last step is handed over in memory"""
    needs: StopNeeds


class AwaitsNewcomers(Event, name="awaits_newcomers"):
    """A larger group continues as soon as its newcomers can train."""

    size: int
    to: int
    so_far_s: float
    most_s: float


class AwaitsParked(Event, name="awaits_parked"):
    """A group stops."""

    parked: int
    size: int
    in_memory: bool
    left_s: float | None
    """how long planner waits. None: without a limit"""
    then: tuple[Event, ...]


# -- what a stop waits for


class StopTime(Event, name="stop_time"):
    """How long a durable stop takes from now on."""

    commit_s: float | None
    """of the last commit. None if none was measured"""
    left_s: float | None
    """0 or less: it takes longer than usual. None if no step or no commit was measured"""
    passed_s: float
    """since the last step"""


class StopsInMemory(Event, name="stops_in_memory"):
    """A group hands its last step over in memory."""

    done_step: int | None
    """its last step. None if it is not done yet"""
    copy_s: float | None
    """of the last copy. None if none was measured"""


class StopsMidStep(Event, name="stops_mid_step"):
    """A group gives up the step in flight, and saves the one before it."""

    in_memory: bool
    """whether that one is handed over in memory. Otherwise it becomes durable"""


class StopsDurably(Event, name="stops_durably"):
    """A group finishes its step, which becomes durable."""

    time: StopTime
    done_step: int
    """as last reported"""
    held_step: int | None
    """of a commit that was in flight when `done_step` was done"""


class AwaitsDurable(Event, name="awaits_durable"):
    """The last step of a group is done, and not durable yet."""

    time: StopTime
    step: int
    is_end: bool
    """it is the last step of the run"""
    after_step: int | None
    """of a commit in flight that is waited for first"""
    is_evaluated: bool
    """whether it is evaluated when it is durable"""


class LastStepDurable(Event, name="last_step_durable"):
    """The last step of a group is done and durable."""

    step: int


class StopsWithoutGroup(Event, name="stops_without_group"):
    """A run is to stop while no worker trains."""

    unsaved_step: int
    """that may be in memory alone. 0: none"""
