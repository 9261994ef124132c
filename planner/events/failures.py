"""What goes wrong: workers and nodes that fail, starts without a place, and what planner concludes from it."""

from typing import Literal

from planner.base.memory_errors import MemoryPlace
from planner.events.event import Event

# -- how a group failed


class WorkerDied(Event, name="worker_died"):
    """The process of a worker is gone. Ray does not know why."""

    rank: int
    node: str | None
    """Ray's id. None if it is not known"""


class WorkerFailed(Event, name="worker_failed"):
    """Training raised an error in a worker."""

    rank: int
    node: str | None
    """Ray's id. None if it is not known"""
    error: str
    """the error's type and the last line of its text, bounded"""


class UserCodeRaised(Event, name="user_code_raised"):
    """The user's training function raised an error."""

    rank: int
    node: str | None
    """Ray's id. None if it is not known"""
    kind: str
    """the exception's type"""
    message: str
    """one line. May be empty"""
    place: str
    """`FILE:LINE, in FUNCTION`. Empty if none is known"""


class OutOfMemory(Event, name="out_of_memory"):
    """A worker had no memory left for its part of a step. `planner.base.memory_errors.MemoryFacts` has the same."""

    rank: int
    node: str | None
    """Ray's id. None if it is not known"""
    device: str
    """the GPU's name, or `CPU`"""
    place: MemoryPlace
    max_micro: int
    """the cap in force, in samples"""
    max_tokens: int | None
    """the cap in force, in tokens. None without `batch.max_tokens`"""
    samples: int
    """the largest micro-batch in force"""
    tokens: int | None
    """its tokens, as far as they are known"""
    longest: int | None
    """tokens of the longest sample, as far as they are known"""
    asked_bytes: int | None
    """what could not be allocated. None if the error does not say"""
    error: str
    """one line, bounded"""


class StartFailed(Event, name="start_failed"):
    """A group could not be started. `error` is the last line of Ray's error."""

    error: str


class Hung(Event, name="hung"):
    """No worker made progress for longer than the limit."""

    silence_s: float
    limit_s: float
    deaf: int
    """workers whose process did not answer"""


class ParkTimedOut(Event, name="park_timed_out"):
    """The workers of a run that ends did not park."""

    after_s: float


# -- what follows


class WorkersFailed(Event, name="workers_failed"):
    """A group failed, and no lost node explains it."""

    reason: Event


class NodeLeftOut(Event, name="node_left_out"):
    """No worker is placed on a node any more, because its workers died `deaths` times within the hour."""

    node: str
    deaths: int


class NodesLost(Event, name="nodes_lost"):
    """Nodes that were lost with a group. Ray finds them one by one, so a second event may follow."""

    nodes: int
    told: int
    """how many of them an earlier event has"""
    from_memory: bool
    """whether the next group looks for copies in memory, or starts from the last commit"""


class MemoryLost(Event, name="memory_lost"):
    """The copies that a group was to load are gone. The next one looks for what is left."""

    reason: Event


class CapLowered(Event, name="cap_lowered"):
    """After a lack of memory, micro-batches on such devices have at most this. A step has the same samples."""

    reason: OutOfMemory
    max_micro: int
    max_tokens: int | None
    """None without `batch.max_tokens`"""


class StopsForMemory(Event, name="stops_for_memory"):
    """After a lack of memory, the run ends: planner may not lower the cap, or that would not help."""

    reason: OutOfMemory
    why: Literal["bitwise", "one_sample", "again"]
    """`bitwise`: micro-batches decide the bits. `again`: a second time without a new step in between, where a lower
    cap has not helped, or cannot help"""
    max_micro: int | None
    """what to write into the job file. None if that would not help"""
    max_tokens: int | None
    """likewise. None without `batch.max_tokens`"""


class GivesUp(Event, name="gives_up"):
    """Another try would not help, so the run ends."""

    reason: Event
    """of the last failure"""
    why: Literal["mistake_at_start", "same_mistake", "no_progress", "too_often"]
    """`mistake_at_start`: the user's code failed before the first step. `same_mistake`: it failed twice in a row at one
    line. `too_often`: within an hour"""
    failures: int
    """in a row for `no_progress`, within the hour for `too_often`, else 1"""


class Place(Event, name="place"):
    """Where some workers are in planner's code."""

    rank: int
    """the first of them"""
    node: str
    """Ray's id of that worker's node"""
    others: int
    """how many more workers are there"""
    location: str | None
    """function, file and line. None if they do not answer"""


class Whereabouts(Event, name="whereabouts"):
    """Where the workers of a group were that is given up."""

    places: tuple[Place, ...]
    """rarest first"""


# -- places and controllers


class Unplaced(Event, name="unplaced"):
    """Fewer workers got a place than were asked for."""

    placed: int
    asked: int


class Held(Event, name="held"):
    """After a start that failed, planner uses no more than `most` workers for a while."""

    reason: Event
    most: int
    hold_s: float


class AutoscalerRejects(Event, name="autoscaler_rejects"):
    """The autoscaler rejected a request."""

    workers: int
    now_asked: int
    """workers of the next request"""


class NoNodes(Event, name="no_nodes"):
    """The cloud gives no nodes that were asked for."""

    workers: int
    """that were asked for"""
    node_type: str
    reason: str
    """as the autoscaler says it. May be empty"""


class ControllerDied(Event, name="controller_died"):
    """The process that controls the workers is gone. Ray does not know why."""


class ControllerSilent(Event, name="controller_silent"):
    """The process that controls the workers gives no sign of life."""

    silent_s: float
    has_started: bool


class ControllerReplaced(Event, name="controller_replaced"):
    """The driver starts another controller."""

    reason: Event
