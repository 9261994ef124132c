"""How many workers a run should have: why it keeps them, waits, or resizes, and why places stay unused."""

from planner.events.event import Event


class Move(Event, name="move"):
    """What another worker count would change. A time is None before the first step was measured."""

    size: int
    """workers now"""
    to: int
    samples: int
    """that a worker computes one after another in a step now"""
    to_samples: int
    step_s: float | None
    to_step_s: float | None
    on_one_machine: bool
    """the nodes share one machine's cores, so `to_step_s` is not what will be measured"""


# -- reasons to resize, or to pause


class TooLittleRoom(Event, name="too_little_room"):
    """There is room for fewer workers than the job may run with."""

    room: int
    least: int
    """`workers.min`"""


class WorkersLeave(Event, name="workers_leave"):
    """There is room for fewer workers than now."""

    room: int
    move: Move


class Pays(Event, name="pays"):
    """The rest of the run wins the pause back."""

    move: Move
    win_back_s: float
    pause_s: float
    remaining_s: float
    """of training"""


class PaysByPlan(Event, name="pays_by_plan"):
    """More workers are much faster by the plan. No step was measured yet."""

    move: Move


class UsesEveryNode(Event, name="uses_every_node"):
    """A rehearsal uses every place."""

    size: int
    to: int


# -- reasons to keep the group


class UsesAll(Event, name="uses_all"):
    """The run has all that it may use."""

    size: int


class NotNeeded(Event, name="not_needed"):
    """A step of `room` workers takes the time of as many samples as one of `size`."""

    size: int
    room: int
    samples: int


class NotFaster(Event, name="not_faster"):
    """A step would be shorter by less than `least`, as a share."""

    move: Move
    least: float


class NotWonBack(Event, name="not_won_back"):
    """The run ends before it wins the pause back."""

    move: Move
    win_back_s: float
    pause_s: float
    remaining_s: float
    """of training"""


# -- reasons to wait


class NotMeasured(Event, name="not_measured"):
    """No step was measured yet, and by the plan more workers are less than `least` times as fast."""

    move: Move
    least: float


class RoomJustChanged(Event, name="room_just_changed"):
    """No step was measured yet, and the room has just changed."""

    move: Move
    wait_s: float


class MoreMayCome(Event, name="more_may_come"):
    """Another worker may follow, and one resize is cheaper than two."""

    move: Move
    wait_s: float


class StaysTooShort(Event, name="stays_too_short"):
    """Room for as many workers often ended before they had paid for a grow and a shrink."""

    move: Move
    wait_s: float
    num_short: int
    """of the last times that there was room for them"""
    num_times: int
    break_even_s: float
    pauses_s: float
    """of a grow and a shrink"""


class RestartsTooOften(Event, name="restarts_too_often"):
    """Losses and notices restart the group too often for a growth in between to pay."""

    move: Move
    wait_s: float
    expected_s: float
    """until the next such restart"""
    needed_s: float
    """without one"""


# -- what limits the room


class WorkersMax(Event, name="workers_max"):
    """The bound that the job sets."""

    most: int


class GlobalBatchUsedUp(Event, name="global_batch"):
    """More workers than samples of a global batch have no work."""

    samples: int


class NodesLeftOut(Event, name="nodes_left_out"):
    """Nodes whose workers died again and again."""

    nodes: tuple[str, ...]


class OnHold(Event, name="on_hold"):
    """A start with more than `most` workers failed. planner tries more in `left_s` seconds."""

    most: int
    left_s: float


# -- what is told


class Waited(Event, name="waited"):
    """No group could start before this one."""

    waited_s: float
    """seconds in which there was room for fewer workers than `workers.min`"""


class PlacesUnused(Event, name="places_unused"):
    """A group that trains leaves places unused."""

    size: int
    places: int
    """more than `size`"""
    reasons: tuple[Event, ...]
    """one or two"""


class Resizes(Event, name="resizes"):
    """Newcomers start beside the group."""

    to: int
    reason: Event


class Resized(Event, name="resized"):
    """The new group has done its first step."""

    size: int
    """of the old group"""
    to: int
    cost_s: float
    """of training"""
    steps_again: int
    """steps that were done again"""
