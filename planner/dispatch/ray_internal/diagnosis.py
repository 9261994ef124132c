"""Failure diagnosis: which worker of a group failed or hangs, why, and where in its code it was."""

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import ray

from planner.base.memory_errors import OutOfMemory as RanOut
from planner.base.text import last_line
from planner.base.user_errors import UserCodeFailed, is_mistake
from planner.dispatch import mailbox
from planner.dispatch.ray_internal import cluster_names as names
from planner.dispatch.ray_internal.group_names import Worker
from planner.elastic.mistakes import Mistake
from planner.events.event import Event
from planner.events.failures import OutOfMemory, Place, UserCodeRaised, Whereabouts, WorkerDied, WorkerFailed

# A running machine accepts a connection at once, also across a data centre.
_PROBE_S = 1.0
# A running worker answers at once.
_WHERE_S = 3.0


def whereabouts(workers: Sequence[Worker]) -> Whereabouts:
    """Where in the code each worker is. Workers at one place are grouped, rarest place first."""
    asked = [worker.actor.execute.remote(mailbox.current_location) for worker in workers]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_WHERE_S)
    places: dict[str | None, list[int]] = {}
    for rank, reference in enumerate(asked):
        location = None
        if reference in ready:
            with contextlib.suppress(Exception):  # it is only a diagnosis
                location = ray.get(reference)
        places.setdefault(location, []).append(rank)
    found = sorted(places.items(), key=lambda item: len(item[1]))
    return Whereabouts(
        places=tuple(
            Place(rank=ranks[0], node=workers[ranks[0]].metadata.node_id, others=len(ranks) - 1, location=location)
            for location, ranks in found
        )
    )


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
    error = (failed.error.kind, failed.error.message, failed.error.place)
    return Mistake(error=error, num_steps=failed.num_steps, node=node)


def out_of_memory(errors: dict[int, Exception], nodes: dict[int, str]) -> tuple[OutOfMemory, ...]:
    """The workers that ran out of memory: the first of each kind of device.

    Args:
        errors: of the ranks that failed.
        nodes: the node of each rank of the group.
    """
    found: dict[str, OutOfMemory] = {}
    for rank, error in sorted(errors.items()):
        if isinstance(error, RanOut):
            facts = vars(error.facts)
            found.setdefault(error.facts.device, OutOfMemory(rank=rank, node=nodes.get(rank), **facts))
    return tuple(found.values())


def lost_memory(errors: dict[int, Exception]) -> bool:
    """Whether the group only found that the copies which it was to load are gone (`MemoryLost`, on every worker)."""
    # By the type's name, because its module needs torch. Ray passes on the error itself: `WorkerGroupPollStatus.errors`
    # in ray/train/v2/_internal/execution/worker_group/poll.py takes it out of Ray's own.
    return bool(errors) and all(type(error).__name__ == "MemoryLost" for error in errors.values())


def silent_nodes(node_ids: set[str]) -> set[str]:
    """The nodes whose raylet does not listen. Ray itself notices a dead node only seconds later."""
    nodes: list[names.NodeRow] = ray.nodes()
    known = {node["NodeID"]: node for node in nodes if node["Alive"]}
    # A pool of 0 threads is a ValueError.
    with ThreadPoolExecutor(max_workers=max(len(node_ids), 1)) as threads:
        answers = threads.map(lambda node_id: node_id in known and _listens(known[node_id]), node_ids)
        return {node_id for node_id, answered in zip(node_ids, answers, strict=True) if not answered}


def _listens(node: names.NodeRow) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _PROBE_S).close()
    except OSError:
        return False
    return True


def cause(died: list[int], nodes: dict[int, str], errors: dict[int, Exception]) -> Event:
    """How the first worker failed.

    It is one that died, else one without memory, else one whose code raised, else the first that Ray names.
    """
    code = failed_code(errors)
    # A worker that raised lives, and may only have met the death of another one.
    rank = died[0] if died else code[0] if code else next(iter(errors))
    node, error = nodes.get(rank), errors[rank]
    if died:
        return WorkerDied(rank=rank, node=node)
    if lacking := out_of_memory(errors, nodes):
        return lacking[0]
    if isinstance(error, UserCodeFailed):
        raised = error.error
        return UserCodeRaised(rank=rank, node=node, kind=raised.kind, message=raised.message, place=raised.place)
    kind = type(error).__name__
    text = last_line(str(error), kind)
    # Python's own last line of a traceback begins with the error's type.
    return WorkerFailed(rank=rank, node=node, error=text if text.startswith(kind) else f"{kind}: {text}")
