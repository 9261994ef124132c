"""The Ray node of this machine: find it, give it notice, and check whether it is alive in the cluster.

It talks only to the head (the GCS), as `ray drain-node` does. It registers no driver, which would keep the node busy.
"""

import socket
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from planner.dispatch.connection_errors import refusal
from planner.dispatch.ray_internal import cluster_names as names
from planner.dispatch.ray_internal import request_drain
from planner.dispatch.ray_internal.compatibility import require
from planner.errors import RunError, UserError

Answer = TypeVar("Answer")

_CONNECT_S = 3.0
_ASK_S = 5.0


class NodeDrainer:
    """This machine's node of a cluster, by the head's address and the node's id."""

    def __init__(self, client: names.GcsClient, address: str, node_id: str) -> None:
        self.address = address
        self.node_id = node_id
        self._client = client

    @classmethod
    def find(cls, address: str, node_id: str) -> Self:
        """The node of this machine in the cluster at `address`. Ray resolves an empty address.

        Raises:
            RunError: there is no such node yet, or the head does not answer.
            UserError: several nodes match, the node is a head without room for workers, or Ray's internals differ.
        """
        require(names)
        address = address or _asked(_address)
        _require_listener(address)
        client = _asked(lambda: _connect(address))
        infos = _asked(lambda: client.get_all_node_info(timeout=_ASK_S))
        alive = {key.hex(): info for key, info in infos.items() if info.state == 0}  # GcsNodeInfo.ALIVE
        found = {node_id} if node_id else _asked(_local_ids)
        ours = sorted(found & set(alive))
        if not ours:
            raise RunError(f"the cluster at {address} has no living node {node_id or 'on this machine'}")
        with_room = [found_id for found_id in ours if _has_room(alive[found_id])]
        if not with_room:
            raise UserError(
                "this node is the cluster's head and has no room for workers. It is not drained, as that would end it"
            )
        if len(with_room) > 1:
            raise UserError(
                f"{len(with_room)} nodes of this cluster are on this machine. Choose one, such as "
                f"--node-id {with_room[0]}"
            )
        return cls(client, address, with_room[0])

    def drain(self, remaining_s: float, message: str) -> None:
        """Give notice that the node goes in `remaining_s` seconds. Infinite if that is not known.

        Raises:
            RunError: the cluster did not accept the notice, or the head does not answer.
        """
        self._require_head()
        _asked(lambda: _in_time(lambda: request_drain(self._client, self.node_id, remaining_s, message)))

    def is_alive(self) -> bool:
        """Whether the node is alive in the cluster.

        Raises:
            RunError: the head does not answer.
        """
        from ray import NodeID

        self._require_head()
        (alive,) = _asked(lambda: self._client.check_alive([NodeID.from_hex(self.node_id)], timeout=_ASK_S))
        return bool(alive)

    def _require_head(self) -> None:
        # Ray's client would wait almost a minute for a dead head.
        _require_listener(self.address)


def _in_time(work: Callable[[], None]) -> None:
    """Do a request with a timeout. Ray sets none, and a hung head accepts connections but does not answer.

    Raises:
        TimeoutError: there was no answer. The request may still arrive later, but it only repeats the last one.
    """
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=attempt, name="planner-drain", daemon=True)
    thread.start()
    thread.join(_ASK_S)
    if thread.is_alive():
        raise TimeoutError(f"the head has not answered for {_ASK_S:.0f} s")
    if errors:
        raise errors[0]


def _asked(question: Callable[[], Answer]) -> Answer:
    """The result of a query to Ray.

    Raises:
        RunError: the query failed.
    """
    from ray.exceptions import RayError

    try:
        return question()
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise RunError(refusal(error)) from error


def _address() -> str:
    from ray._private.services import canonicalize_bootstrap_address

    return str(canonicalize_bootstrap_address("auto"))


def _connect(address: str) -> names.GcsClient:
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    ensure_token_if_auth_enabled(create_token_if_missing=False)
    client: names.GcsClient = GcsClient(address=address)
    return client


def _local_ids() -> set[str]:
    from ray._private.services import find_node_ids

    return set(find_node_ids())


def _require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--address {address}: give the head's address, host:6379 by default")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise RunError(f"nothing listens at {address}: {error}") from error


def _has_room(info: names.GcsNodeInfo) -> bool:
    """Whether the node can hold workers. Ray ends an idle node when it is drained, and a head ends its cluster."""
    offers = info.resources_total
    return bool(not info.is_head_node or offers.get("CPU", 0) or offers.get("GPU", 0))
