"""What a generation notes of its commits and of its copies in memory."""

from typing import Literal

from planner.events.event import Event


class MeasuredInterval(Event, name="measured_interval"):
    """The commit interval that `planner.plan.interval` computes, and what it was computed from."""

    steps: int
    work_s: float
    """of these steps"""
    save_s: float
    """that one save costs training"""
    write_s: float
    """to write a save in the background"""
    between_losses_s: float
    """expected between two losses without notice"""
    losses: int
    """so far"""
    observed_s: float
    """over which the losses were counted"""


class CommitInterval(Event, name="commit_interval"):
    """A run with `checkpoint.every: auto` commits at another interval than it told before."""

    steps: int
    """fewer than the measured ones if the limit of work at risk is lower"""
    work_s: float
    measured: MeasuredInterval
    steps_left: int | None
    """of the job, if the interval is longer. Then the run commits only at its end"""


class OldFilesLeft(Event, name="old_files_left"):
    """Files of older commits could not be removed."""

    step: int
    """that is durable"""
    reason: str


class CopyInterval(Event, name="copy_interval"):
    """A run with `checkpoint.memory: auto` copies into memory at another interval than it told before."""

    steps: int
    copy_s: float
    """of one copy"""


class HostRoomLacking(Event, name="host_room_lacking"):
    """So many copies of the workers' state do not fit into the memory of a host."""

    copies: Literal[1, 2, 4]
    """of each worker's state (`planner.plan.commit_size.COPIES`)"""
    host: str
    needed_bytes: int
    available_bytes: int
    training_bytes: int


class FloorRoomLacking(Event, name="floor_room_lacking"):
    """An on-demand node has no room for the copies of all other nodes, so each node has those of one other node."""

    host: str
    needed_bytes: int
    """of all copies there, and of what training takes"""
    available_bytes: int


class LoadedFromMemory(Event, name="loaded_from_memory"):
    """A generation resumed from copies in memory."""

    step: int
    generation: int
    """that made the copies"""
    workers: int
    """whose copies they are"""
    nodes: int
    """whose memory has them"""


class KeeperLost(Event, name="keeper_lost"):
    """A worker's own node keeps no copies."""

    is_full: bool
    """and not gone. It is not asked again before older copies are freed"""
    reason: str


class KeeperFound(Event, name="keeper_found"):
    """A worker's own node keeps copies again."""


class ReplicaLost(Event, name="replica_lost"):
    """Another node keeps no copies for now."""

    node: str
    reason: str
