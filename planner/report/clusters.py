"""A cluster as text: its node groups, and why it has no room for a job."""

from collections.abc import Iterable

from planner.base.text import counted
from planner.cluster.nodes import Cluster, NodeGroup
from planner.cluster.reachable_counts import Reach
from planner.plan import workers_on_node


def cluster_line(reach: Reach) -> str:
    """One line: how many nodes each group can have, and how many workers fit on one of its nodes."""
    cluster = reach.cluster
    groups = ", ".join(
        f"{_range_text(group)} x {group.name} ({_room_text(workers_on_node(group.resources, reach.taken))})"
        for group in _existing(cluster)
    )
    return f"cluster {cluster.name}: {groups}; at most {counted(cluster.max_nodes, 'node')} beside the head"


def no_room(reach: Reach) -> str:
    """The message that no node has room for a worker, with what a worker takes and what the nodes offer."""
    cluster = reach.cluster
    takes = _amounts(reach.taken.items())
    offers = "; ".join(f"{group.name} {_amounts(group.resources.items())}" for group in _existing(cluster))
    return (
        f"cluster {cluster.name} has no node with room for a worker, which takes {takes} (workers.cpus, workers.gpus, "
        f"workers.resources). The nodes offer: {offers}"
    )


def usable_groups(reach: Reach) -> list[NodeGroup]:
    """The groups, and the head, that have room for a worker."""
    return [group for group in _existing(reach.cluster) if workers_on_node(group.resources, reach.taken)]


def _existing(cluster: Cluster) -> list[NodeGroup]:
    return [group for group in (cluster.head, *cluster.groups) if group.max_nodes]


def _range_text(group: NodeGroup) -> str:
    return str(group.max_nodes) if group.min_nodes == group.max_nodes else f"{group.min_nodes}-{group.max_nodes}"


def _room_text(room: int) -> str:
    return f"{counted(room, 'worker')} each" if room else "no room"


def _amounts(amounts: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(amounts) if amount) or "nothing"
