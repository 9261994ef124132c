"""Notices, stops and newcomers: how a group makes way for the next one, or ends with the run."""

from typing import Literal

from planner.events.event import Event

Obstacle = Literal[
    "driver_ends", "no_keeper", "no_other_group", "commit_is_quicker", "notice_too_short", "nothing_durable"
]
"""why a stop must be durable. `no_other_group`: none can start. `nothing_durable`: since the group began"""


class StopNeeds(Event, name="stop_needs"):
    """What a durable stop needs."""

    stop_s: float
    lacks: Literal["step", "commit"] | None
    """what was not measured yet, so that `stop_s` is no expectation"""
    held_step: int | None
    """of a commit in flight"""


# -- a notice


class Notice(Event, name="notice"):
    """Nodes of the group will go, and all workers stop."""

    leaving: int
    """workers on these nodes"""
    size: int
    left_s: float | None
    """until the first node goes. None without a deadline"""
    room: int
    """workers that the other nodes have room for"""
    obstacle: Obstacle | None
    """why the last step cannot stay in memory. None if it does, or if the nodes have no keepers"""


class HandsOver(Event, name="hands_over"):
    """The last step stays in memory. `allowed_s` is the time allowed for that, None before the first hand-over."""

    allowed_s: float | None


class NoticeSuffices(Event, name="notice_suffices"):
    """A notice is long enough to keep all steps, as far as that is known."""

    needs: StopNeeds


class NoticeTooShort(Event, name="notice_too_short"):
    """A notice is too short to keep all steps."""

    needs: StopNeeds
    tries_s: float | None
    """how long planner still tries a commit, since nodes often live longer than their notice says. None: not at all"""


class TrainsOn(Event, name="trains_on"):
    """After a notice too few workers will fit, so the group trains for the rest of it."""

    room: int
    needs: StopNeeds
    left_s: float | None
    """until the first node goes. None without a deadline"""


class UsesNotice(Event, name="uses_notice"):
    """A notice is short, and fewer or as many workers will fit: the group trains for most of it."""

    leaving: int
    """workers on the nodes that go"""
    size: int
    room: int
    """workers that the other nodes have room for"""
    left_s: float
    stops_s: float
    """the group stops when no more than this is left"""


class ReplacementsStart(Event, name="replacements_start"):
    """While a group uses a notice, newcomers start on other nodes, in place of the workers that go."""

    newcomers: int
    to: int
    """workers of the next group"""


class CutsStep(Event, name="cuts_step"):
    """The workers stop without the step in flight, if they can still agree on it."""

    elapsed_s: float
    """of that step"""
    rest_s: float
    to: int | None
    """workers of the next group, if it is larger"""
    to_step_s: float | None
    """what the whole step takes there"""
    left_s: float | None
    """until the first node goes. None without a notice"""


class BecomesDurable(Event, name="becomes_durable"):
    """The last step of a group that stops was to stay in memory, and cannot."""

    obstacle: Obstacle


# -- newcomers


class AwaitsCommit(Event, name="awaits_commit"):
    """Newcomers are ready, and wait for a commit, so that the last step can stay in memory."""

    since_step: int
    """the oldest step that will do"""


class AwaitsFirstStep(Event, name="awaits_first_step"):
    """Newcomers are ready, and wait for the group's first step: without it, its start would be in vain."""

    to: int
    """workers of the next group"""
    most_s: float


class NewcomersCalledOff(Event, name="newcomers_called_off"):
    """The processes that were started beside the group end."""

    reason: Event


class RoomShrank(Event, name="room_shrank"):
    """There is no room for the newcomers any more."""

    room: int


class NoticeWithdrawn(Event, name="notice_withdrawn"):
    """The nodes that were to go stay, so their workers need no replacement."""


class NewcomersLate(Event, name="newcomers_late"):
    """Newcomers were not ready in time."""

    after_s: float


class NewcomerFailed(Event, name="newcomer_failed"):
    """A newcomer failed while it started."""


# -- the group ends


class DriverStops(Event, name="driver_stops"):
    """The driver stops the run."""


class EndsWithLoss(Event, name="ends_with_loss"):
    """The run ends, and steps are lost that are only in memory."""

    step: int
    """the newest one"""
    is_sure: bool
    """false: its copies, or those of an older one, may be in memory"""
    durable_step: int
    """of the group's newest durable commit. 0: not known"""


class HeldStepLost(Event, name="held_step_lost"):
    """A step that was only in memory is lost."""

    step: int
    resumed_step: int


class FirstStepGivenUp(Event, name="first_step_given_up"):
    """A group had not done its first step long after newcomers were ready. A larger one does it."""

    after_s: float
    """since the group's start"""


class NotParked(Event, name="not_parked"):
    """A group that was to stop was given up."""

    workers: int
    """that had not parked"""
    after_s: float
    from_memory: bool
    """whether the next group looks for copies in memory, or starts from the last commit"""


class WaitsForFloor(Event, name="waits_for_floor"):
    """A launch cannot begin, because on-demand nodes lack places for `workers.min` (`workers.min_on`)."""

    room: int
    """workers that fit on on-demand nodes"""
    least: int
    """`workers.min`"""
    other_room: int
    """workers that fit on other nodes"""
    has_labels: bool
    """whether any node says how it is rented"""


class FloorMissing(Event, name="floor_missing"):
    """A group was started with fewer than `workers.min` workers on on-demand nodes."""

    on_demand: int
    """its workers on on-demand nodes"""
    least: int
    """`workers.min`"""


class WaitsForRoom(Event, name="waits_for_room"):
    """No group can start."""

    room: int
    """at most `workers.max`"""
    least: int
    """`workers.min`"""
