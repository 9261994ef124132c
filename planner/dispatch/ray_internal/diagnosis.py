"""Failure diagnosis: which worker of a group failed or hangs, why, and where in its code it was."""

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import ray

from planner.base.text import last_line
from planner.base.user_errors import UserCodeFailed, is_mistake
from planner.dispatch import mailbox
from planner.dispatch.ray_internal import cluster_names as names
from planner.dispatch.ray_internal.group_names import Worker
from planner.elastic.mistakes import Mistake

# A running machine accepts a connection at once, also across a data centre.
_PROBE_S = 1.0
# A running worker answers at once.
_WHERE_S = 3.0


def whereabouts(workers: Sequence[Worker]) -> str:
    """A text that says where in the code each worker is. Workers at one place are grouped, rarest place first."""
    asked = [worker.actor.execute.remote(mailbox.current_location) for worker in workers]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_WHERE_S)
    places: dict[str, list[int]] = {}
    for rank, reference in enumerate(asked):
        place = "does not answer"
        if reference in ready:
            with contextlib.suppress(Exception):  # the text is only a diagnosis
                place = ray.get(reference)
        places.setdefault(place, []).append(rank)
    found = []
    for place, ranks in sorted(places.items(), key=lambda item: len(item[1])):
        others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        found.append(f"worker {ranks[0]} on node {workers[ranks[0]].metadata.node_id[:8]}{others}: {place}")
    return "where they were: " + "; ".join(found)


def has_died(error: Exception) -> bool:
    """Whether the error means that the worker's process is gone or does not answer, and not that training raised."""
    return type(error).__name__ in {"WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError"}


# When one worker fails, the collectives of the others break. Their errors contain one of these.
_ECHOES = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")


def culprit(errors: dict[int, Exception]) -> list[int]:
    """The rank of the worker that failed first: the only one of several whose error is not a broken collective.

    Empty if there is no such single worker, or if only one worker failed.
    """
    own = [rank for rank, error in errors.items() if not any(echo in str(error).lower() for echo in _ECHOES)]
    return own if len(own) == 1 < len(errors) else []


def failed_code(errors: dict[int, Exception]) -> tuple[int, UserCodeFailed] | None:
    """The first rank whose training function raised an error of the user's code. None if no rank's did."""
    for rank, error in sorted(errors.items()):
        if isinstance(error, UserCodeFailed) and is_mistake(error):
            return rank, error
    return None


def mistake_of(errors: dict[int, Exception], nodes: dict[int, str]) -> Mistake | None:
    """The mistake in the user's code that ended a group. None if no training function raised one.

    Args:
        errors: of the ranks that failed.
        nodes: the node of each rank of the group.
    """
    code = failed_code(errors)
    if code is None:
        return None
    rank, failed = code
    is_alone = failed_code({other: error for other, error in errors.items() if other != rank}) is None
    node = nodes[rank] if is_alone and len({*nodes.values()}) > 1 else ""
    return Mistake(text=failed.error.text, num_steps=failed.num_steps, node=node)


def lost_memory(errors: dict[int, Exception]) -> bool:
    """Whether the group only found that the copies which it was to load are gone (`MemoryLost`, on every worker)."""
    return bool(errors) and all("MemoryLost" in f"{type(error).__name__} {error}" for error in errors.values())


def silent_nodes(node_ids: set[str]) -> set[str]:
    """The nodes whose raylet does not listen. Ray itself notices a dead node only seconds later."""
    nodes: list[names.NodeRow] = ray.nodes()
    known = {node["NodeID"]: node for node in nodes if node["Alive"]}
    with ThreadPoolExecutor(max_workers=max(len(node_ids), 1)) as threads:
        answers = threads.map(lambda node_id: node_id in known and _listens(known[node_id]), node_ids)
        return {node_id for node_id, answered in zip(node_ids, answers, strict=True) if not answered}


def _listens(node: names.NodeRow) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _PROBE_S).close()
    except OSError:
        return False
    return True


def cause(died: list[int], nodes: dict[int, str], errors: dict[int, Exception]) -> str:
    """A text about how the first worker failed. Ray does not know why a process is gone, so the text names causes."""
    code = failed_code(errors)
    rank = died[0] if died else code[0] if code else next(iter(errors))
    where = f"worker {rank} on node {nodes.get(rank, '?')[:8]}"
    if died:
        return f"{where} died (killed, or out of memory)"
    if isinstance(errors[rank], UserCodeFailed):
        return f"{where}: {errors[rank]}"
    kind = type(errors[rank]).__name__
    text = last_line(str(errors[rank]), kind)
    return f"{where}: {text}" if text.startswith(kind) else f"{where}: {kind}: {text}"
