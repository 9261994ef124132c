"""Which nodes the cluster has for a run."""

from planner.events.event import Event


class Leaving(Event, name="leaving_node"):
    """A node with notice."""

    node: str
    """Ray's id, the first digits"""
    left_s: float | None
    """until it goes, when this was noted. None without a deadline"""


class Capacity(Event, name="capacity"):
    """The nodes for this run's workers. Noted at the start of each group, and when they change."""

    time_s: float
    """when the controller saw it, in seconds since the epoch. The record may be written later"""
    nodes: tuple[str, ...]
    """Ray's ids, the first digits. They hold workers or could, and have no notice"""
    places: int
    """workers that these nodes hold together"""
    leaving: tuple[Leaving, ...]
    """nodes that are still there, and have notice"""
