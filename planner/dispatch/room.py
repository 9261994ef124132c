"""What one worker takes, and what the cluster's nodes have."""

from collections.abc import Mapping, Sequence

from planner.job import Job

Resources = Mapping[str, float]
"""Ray's name of a resource -> amount"""


def worker_resources(job: Job) -> dict[str, float]:
    """What one worker takes from the cluster."""
    wanted = {"CPU": job.workers.cpus, "GPU": float(job.workers.gpus), **job.workers.resources}
    return {name: amount for name, amount in wanted.items() if amount > 0}


def alive_nodes() -> list[Resources]:
    """What each node of the connected cluster has in all, whatever runs there."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room_for(wanted: Resources, nodes: Sequence[Resources]) -> int:
    """How many workers fit."""
    return int(sum(min(node.get(name, 0) // amount for name, amount in wanted.items()) for node in nodes))


def shortage(wanted: Resources, nodes: Sequence[Resources]) -> str:
    """Why not even one worker fits, in words; empty if one does."""
    if room_for(wanted, nodes):
        return ""
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in wanted}
    lacking = [_lack(name, amount, most[name]) for name, amount in wanted.items() if most[name] < amount]
    together = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items())
    return "; ".join(lacking) or f"no node has all that a worker takes ({together})"


def _lack(name: str, amount: float, most: float) -> str:
    key = {"CPU": "workers.cpus", "GPU": "workers.gpus"}.get(name, f"workers.resources.{name}")
    return f"no node has {'any' if most == 0 else f'more than {most:g}'} {name}, and {key} is {amount:g}"
