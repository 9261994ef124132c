"""A cluster as text: its node groups, and why it has no room for a job."""

from collections.abc import Iterable

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.base.text import counted, enumerated
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


def floor_note(reach: Reach, floor: int) -> str:
    """What is wrong with a cluster that must have room for `floor` workers on on-demand nodes. Empty if nothing is."""
    groups = [group for group in usable_groups(reach) if group.market == ON_DEMAND]
    room = [workers_on_node(group.resources, reach.taken) for group in groups]
    least = sum(each * group.min_nodes for each, group in zip(room, groups, strict=True))
    most = sum(each * group.max_nodes for each, group in zip(room, groups, strict=True))
    if floor and not groups:
        return _no_on_demand(reach)
    names = enumerated([group.name for group in groups])
    if most < floor:
        return (
            f"The run waits: on-demand nodes ({names}) have room for {counted(most, 'worker')}, and workers.min is "
            f"{floor}. Allow more of them, or write a lower workers.min."
        )
    if least < floor:
        return (
            f"The cluster keeps on-demand nodes ({names}) for {counted(least, 'worker')}, and workers.min is {floor}. "
            "Ray's older autoscaler (that of `ray up`) ignores labels, so it may start spot nodes alone for the "
            "others. Keep as many nodes (min_workers, or minReplicas of KubeRay)."
        )
    return ""


def _no_on_demand(reach: Reach) -> str:
    return (
        f"The run waits: workers.min_on is {ON_DEMAND}, and no node of cluster {reach.cluster.name} with room for a "
        f"worker has the label {MARKET_LABEL}: {ON_DEMAND}. Write it under "
        "labels of a node type or worker group."
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
