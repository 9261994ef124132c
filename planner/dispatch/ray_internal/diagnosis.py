"""Failure diagnosis: which worker of a group failed or hangs, why, and where in its code it was."""

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import ray

from planner.base.text import last_line
from planner.dispatch import mailbox
from planner.dispatch.ray_internal import shapes

# A machine that lives accepts a connection at once, from a data centre's other end, too.
_PROBE_S = 1.0
# A worker that lives says at once where it is.
_WHERE_S = 3.0


def whereabouts(workers: Sequence[shapes.Worker]) -> str:
    """Where in its code each worker is, in words. Workers at one place are counted together, the rarest place first."""
    asked = [worker.actor.execute.remote(mailbox.current_location) for worker in workers]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_WHERE_S)
    places: dict[str, list[int]] = {}
    for rank, reference in enumerate(asked):
        place = "does not answer"
        if reference in ready:
            with contextlib.suppress(Exception):  # it is only told
                place = ray.get(reference)
        places.setdefault(place, []).append(rank)
    words = []
    for place, ranks in sorted(places.items(), key=lambda item: len(item[1])):
        others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        words.append(f"worker {ranks[0]} on node {workers[ranks[0]].metadata.node_id[:8]}{others}: {place}")
    return "where they were: " + "; ".join(words)


def has_died(error: Exception) -> bool:
    """Whether the worker's process is gone or does not answer. An exception in the training function is neither."""
    return type(error).__name__ in {"WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError"}


# The others' collectives break when one worker fails: what they say is an echo.
_ECHOES = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")


def culprit(errors: dict[int, Exception]) -> list[int]:
    """The rank of the worker that failed first, where several did: the only one whose exception is not an echo.

    Empty if more than one exception is not an echo, or none, or if there is one exception in all.
    """
    own = [rank for rank, error in errors.items() if not any(word in str(error).lower() for word in _ECHOES)]
    return own if len(own) == 1 < len(errors) else []


def silent_nodes(node_ids: set[str]) -> set[str]:
    """The nodes whose raylet does not listen: Ray itself finds a dead node out only seconds later."""
    nodes: list[shapes.NodeRow] = ray.nodes()
    known = {node["NodeID"]: node for node in nodes if node["Alive"]}
    with ThreadPoolExecutor(max_workers=max(len(node_ids), 1)) as threads:
        answers = threads.map(lambda node_id: node_id in known and _listens(known[node_id]), node_ids)
        return {node_id for node_id, answered in zip(node_ids, answers, strict=True) if not answered}


def _listens(node: shapes.NodeRow) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _PROBE_S).close()
    except OSError:
        return False
    return True


def cause(died: list[int], nodes: dict[int, str], errors: dict[int, Exception]) -> str:
    """How the first worker failed, in words. Ray does not know why a process is gone, only what may have ended it."""
    rank = died[0] if died else next(iter(errors))
    where = f"worker {rank} on node {nodes.get(rank, '?')[:8]}"
    return (
        f"{where} died (killed, or out of memory)"
        if died
        else f"{where}: {last_line(str(errors[rank]), type(errors[rank]).__name__)}"
    )
