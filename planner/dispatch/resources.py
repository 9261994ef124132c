"""The resources of the connected cluster's nodes, and how many workers fit on them."""

import math
from collections.abc import Sequence

from planner.base.node_market import MARKET_LABEL
from planner.job import Workers
from planner.job.resource_names import hint
from planner.plan import Resources, workers_on_node


def taken_by_a_worker(workers: Workers, *, node_each: bool) -> dict[str, float]:
    """The resources of one worker: Ray's name of a resource -> amount.

    With `node_each`, every worker has its own node of the local cluster. Nodes offer whole amounts, so amounts are
    rounded up: otherwise two workers of 0.5 CPUs would share the node that was started for one.
    """
    return {name: math.ceil(amount) if node_each else amount for name, amount in workers.taken.items()}


def alive_nodes() -> list[Resources]:
    """The total resources of each living node of the connected cluster, used or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def rented_nodes() -> list[tuple[Resources, str]]:
    """Of each living node: its resources, and how it is rented by its label. Empty for a node without this label."""
    import ray

    alive = (node for node in ray.nodes() if node["Alive"])
    return [(node["Resources"], (node.get("Labels") or {}).get(MARKET_LABEL, "")) for node in alive]


def room_for(wanted: Resources, nodes: Sequence[Resources]) -> int:
    """How many workers with the resources `wanted` fit on all nodes together."""
    return sum(workers_on_node(node, wanted) for node in nodes)


def gpus_for_several(taken: Resources, nodes: Sequence[Resources]) -> bool:
    """Whether a node has GPUs for several workers that take `taken` each.

    Such workers cannot keep their processes, and Ray packs them better as one placement group.
    """
    gpus = taken.get("GPU", 0)
    return gpus > 0 and any(node.get("GPU", 0) >= 2 * gpus for node in nodes)


def shortage(wanted: Resources, nodes: Sequence[Resources]) -> str:
    """Why not even one worker fits. Empty if one does."""
    if room_for(wanted, nodes):
        return ""
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in wanted}
    lacking = [_lack(name, amount, most[name]) for name, amount in wanted.items() if most[name] < amount]
    together = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items())
    return ", and ".join(lacking) or f"no node has everything that a worker needs ({together})"


def _lack(name: str, amount: float, most: float) -> str:
    """Which resource no node has enough of, with the job's key."""
    key = {"CPU": "workers.cpus", "GPU": "workers.gpus"}.get(name, f"workers.resources.{name}")
    instead = f" ({text})" if (text := hint(name)) else ""
    return f"no node has {'any' if most == 0 else f'more than {most:g}'} {name}, but {key} is {amount:g}{instead}"
