"""A cluster as its file describes it: how many nodes of each group, and what one node offers to Ray.

`planner.files` reads it, `planner.cluster.reachable_counts` counts the workers that fit on it.
Nothing here knows a cloud.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeGpu:
    """What a cluster file says of the kind of a node's GPUs."""

    kinds: tuple[str, ...]
    """names (`planner.plan.gpu_kinds`). Several if the file leaves open which one: `A100`, with 40 or 80 GB"""
    key: str
    """where the file says it, such as `InstanceType`"""
    value: str
    """what it says, such as `g6.2xlarge`"""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of one kind, which the autoscaler adds and removes.

    Raises:
        ValueError: a number is below 0, or `min_nodes` and `max_nodes` are not a range in whole steps.
    """

    name: str
    min_nodes: int
    max_nodes: int
    """`min_nodes` to `max_nodes` nodes of this group, both included"""
    resources: Mapping[str, float]
    """what one node offers: CPU, GPU, and custom resources by name"""
    nodes_per_step: int = 1
    """number of nodes that the autoscaler adds or removes at a time"""
    gpu: NodeGpu | None = None
    """the kind of its GPUs. None: it has none, or the file does not say"""
    market: str = ""
    """how its nodes are rented, by their label (`planner.base.node_market`). Empty if the file does not say"""

    def __post_init__(self) -> None:
        step = self.nodes_per_step
        if step < 1 or not 0 <= self.min_nodes <= self.max_nodes or self.min_nodes % step or self.max_nodes % step:
            raise ValueError(f"{self.name}: cannot have {self.min_nodes} to {self.max_nodes} nodes in steps of {step}")
        if any(amount < 0 for amount in self.resources.values()):
            raise ValueError(f"{self.name}: a node must offer amounts of 0 or more, not {dict(self.resources)}")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A head node and groups of other nodes.

    Raises:
        ValueError: the head is not one node, or the groups' `min_nodes` together exceed `max_nodes`.
    """

    name: str
    head: NodeGroup
    groups: tuple[NodeGroup, ...]
    max_nodes: int
    """the most nodes of all groups together, without the head"""

    def __post_init__(self) -> None:
        if (self.head.min_nodes, self.head.max_nodes) != (1, 1):
            raise ValueError(f"a cluster must have one head, not {self.head.min_nodes} to {self.head.max_nodes}")
        if (least := sum(group.min_nodes for group in self.groups)) > self.max_nodes:
            raise ValueError(f"the groups have at least {least} nodes, and the cluster at most {self.max_nodes}")
