"""A cluster as its file describes it: how many nodes of which kind there may be, and what one of them offers to Ray.

`planner.files` reads it, `planner.cluster.reach` counts the workers that have room on it. Nothing here knows a cloud.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of one kind; the autoscaler adds them and takes them away.

    Raises:
        ValueError: a number is below 0, or `min_nodes` and `max_nodes` are no range of whole steps.
    """

    name: str
    min_nodes: int
    max_nodes: int
    """the least and the most nodes of this group"""
    resources: Mapping[str, float]
    """what one node offers: CPU, GPU, and custom resources by name"""
    nodes_per_step: int = 1
    """nodes come and go by so many at a time"""

    def __post_init__(self) -> None:
        step = self.nodes_per_step
        if step < 1 or not 0 <= self.min_nodes <= self.max_nodes or self.min_nodes % step or self.max_nodes % step:
            raise ValueError(f"{self.name}: {self.min_nodes} to {self.max_nodes} nodes in steps of {step}")
        if any(amount < 0 for amount in self.resources.values()):
            raise ValueError(f"{self.name}: a node offers amounts of 0 or more, not {dict(self.resources)}")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A head, and groups of nodes beside it.

    Raises:
        ValueError: the head is not one node, or the groups' least nodes are more than `max_nodes`.
    """

    name: str
    head: NodeGroup
    groups: tuple[NodeGroup, ...]
    max_nodes: int
    """the most nodes beside the head, of all groups together"""

    def __post_init__(self) -> None:
        if (self.head.min_nodes, self.head.max_nodes) != (1, 1):
            raise ValueError(f"a cluster has one head, not {self.head.min_nodes} to {self.head.max_nodes}")
        if (least := sum(group.min_nodes for group in self.groups)) > self.max_nodes:
            raise ValueError(f"the groups have at least {least} nodes, and the cluster at most {self.max_nodes}")
