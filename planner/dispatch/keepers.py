"""Keepers on Ray: one named, detached actor per node and launch. How workers and drivers find them, and how they end.

`keeper_census.py` decides which nodes have one. A detached actor outlives the controller that made it.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.dispatch.mailbox import keepers_key
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.keeper.addresses import Address, Keepers
from planner.train.setup import Launch

_log = logging.getLogger(__name__)

NAMESPACE = "planner-keepers"
"""of the actors' names in Ray"""
# A keeper starts within a second. A worker that needs longer to start does not wait at all.
_AWAITED_S = 5.0
_POLL_S = 0.1
_END_S = 5.0
_CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the controller publishes of a launch's keepers."""

    addresses: tuple[Address, ...] = ()
    starting: tuple[str, ...] = ()
    """nodes whose keeper does not answer yet"""

    def as_text(self) -> str:
        """As JSON."""
        return json.dumps({"addresses": [asdict(address) for address in self.addresses], "starting": self.starting})

    @classmethod
    def of_text(cls, text: str) -> "Published":
        """The inverse of `as_text`. Nothing for the empty text, and after the end of the launch."""
        if not text or text == _CLOSED:
            return cls()
        value = json.loads(text)
        addresses = tuple(Address(**address) for address in value["addresses"])
        return cls(addresses=addresses, starting=tuple(value["starting"]))


def has_keepers(launch: Launch) -> bool:
    """Whether the launch keeps copies in memory."""
    return bool(launch.keeper_secret) and launch.job.checkpoint.memory != "off"


def keepers_of(launch: Launch) -> Keepers | None:
    """What this worker knows of the launch's keepers. Waits some seconds if its own node's keeper is starting.

    None if the launch has none, or if the key-value store does not answer.
    """
    if not has_keepers(launch):
        return None
    import ray

    try:
        here, ends_s = ray.get_runtime_context(), time.monotonic() + _AWAITED_S
        node = here.get_node_id()
        has_floor = launch.job.workers.floor > 0
        is_on_floor = has_floor and here.get_node_labels().get(MARKET_LABEL) == ON_DEMAND
        found = _published(launch.launch_id, ends_s)
        while node in found.starting and time.monotonic() < ends_s:
            time.sleep(_POLL_S)
            found = _published(launch.launch_id, ends_s)
    except Exception:  # noqa: BLE001  # the worker trains without keepers
        _log.warning("the keepers of this launch are not known", exc_info=True)
        return None
    return Keepers(
        node=node,
        addresses=found.addresses,
        is_on_floor=is_on_floor,
        secret=launch.keeper_secret,
    )


def _published(launch_id: str, ends_s: float) -> Published:
    """Ask the key-value store until it answers: one worker without an answer would cost all what is in memory.

    Raises:
        Exception: it has not answered until `ends_s` of the monotonic clock.
    """
    while True:
        try:
            text = kv_get(keepers_key(launch_id))
        except Exception:
            if time.monotonic() >= ends_s:
                raise
            time.sleep(_POLL_S)
        else:
            return Published.of_text(text)


@contextlib.contextmanager
def ending_keepers(launch: Launch) -> Iterator[None]:
    """On exit, ends all keepers of the launch. For the driver. It takes some seconds at most, and raises nothing."""
    try:
        yield
    finally:
        if has_keepers(launch):
            # If the cluster is gone, Ray's calls wait for it.
            ends = threading.Thread(target=_end_all, args=(launch.launch_id,), name="planner-end-keepers", daemon=True)
            ends.start()
            ends.join(_END_S)


def _end_all(launch_id: str) -> None:
    with contextlib.suppress(Exception):  # idle keepers end by themselves
        actors = KeeperActors(launch_id, secret="")
        # First, so that a controller which still runs makes no new one.
        kv_put(keepers_key(launch_id), _CLOSED)
        # Ray ends actors some time after it is told to. A controller that still runs may also just have made one.
        while nodes := actors.find():
            for node in nodes:
                actors.end(node)
            time.sleep(_POLL_S)
            # Once more: that controller may have published its own list in between.
            kv_put(keepers_key(launch_id), _CLOSED)


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """What a keeper must know of its node."""

    host: str
    """the node's address"""
    num_nodes: int
    """nodes of the cluster on the same host, which share its memory"""


def places(nodes: Iterable[Mapping[str, Any]]) -> dict[str, NodePlace]:
    """Node -> its place, of the rows of `ray.nodes()`. A node without CPU and GPU, such as a head, does not count."""
    alive = [
        node
        for node in nodes
        if node["Alive"] and (node["Resources"].get("CPU", 0) > 0 or node["Resources"].get("GPU", 0) > 0)
    ]
    hosts = [(node["NodeManagerHostname"], node["NodeManagerAddress"]) for node in alive]
    return {
        node["NodeID"]: NodePlace(host=node["NodeManagerAddress"], num_nodes=hosts.count(host))
        for node, host in zip(alive, hosts, strict=True)
    }


class KeeperActors:
    """The actors of a launch, by node, and what its workers know of them. No method waits for an actor.

    All may wait for Ray's head, and raise an error if it does not answer.
    """

    def __init__(self, launch_id: str, secret: str) -> None:
        self._launch_id, self._secret = launch_id, secret
        self._prefix = f"planner-keeper-{launch_id}-"

    def publish(self, keepers: Published) -> None:
        """Tell the workers of the launch which keepers there are."""
        kv_put(keepers_key(self._launch_id), keepers.as_text())

    def is_closed(self) -> bool:
        """Whether the driver has ended the launch's keepers, so that none is started any more."""
        return kv_get(keepers_key(self._launch_id)) == _CLOSED

    def find(self) -> list[str]:
        """The nodes whose keeper is known to Ray, also those that another controller has made."""
        from ray.util import list_named_actors

        # Otherwise Ray lists only this job's namespace, and keepers have one of their own.
        named = list_named_actors(all_namespaces=True)
        names = [actor["name"] for actor in named if actor["namespace"] == NAMESPACE]
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]

    def open(self, node: str, place: NodePlace) -> Any:
        """Start the node's keeper if it has none. Returns a reference to its `Address`.

        Raises:
            Exception: Ray does not answer.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from planner.dispatch.keeper_actor import KeeperActor

        actor = (
            ray.remote(KeeperActor)
            .options(
                name=f"{self._prefix}{node}",
                namespace=NAMESPACE,
                lifetime="detached",
                # Another controller may have made it.
                get_if_exists=True,
                # It takes no place of a worker.
                num_cpus=0,
                # Ray would restart it empty, and nobody would hear that its copies are lost.
                max_restarts=0,
                # Its memory must be this node's, so it starts there or nowhere.
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(is_watched=True)
        )
        return actor.open.remote(node=node, host=place.host, num_nodes=place.num_nodes, secret=self._secret)

    def ping(self, node: str) -> Any:
        """A reference that is there when the node's keeper has answered.

        Raises:
            Exception: there is no such keeper, or Ray does not answer.
        """
        return self._actor(node).ping.remote()

    def answers(self, asked: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Node -> answer or error, of the references that are there within `wait_s`."""
        import ray

        references = list(asked.values())
        done = set(ray.wait(references, num_returns=len(references), timeout=wait_s)[0]) if references else set()
        found: dict[str, Any] = {}
        for node, reference in asked.items():
            if reference in done:
                try:
                    found[node] = ray.get(reference)
                except Exception as error:  # noqa: BLE001  # the answer is that it failed
                    found[node] = error
        return found

    def is_gone(self, error: Exception) -> bool:
        """Whether an error of a keeper, or of the search for it, says that it has ended. Ray may only not reach it."""
        from ray.exceptions import ActorDiedError

        return isinstance(error, ActorDiedError | ValueError)  # a name that no actor has is a ValueError

    def end(self, node: str) -> None:
        """End the node's keeper, if it has one. What it holds is lost."""
        import ray

        with contextlib.suppress(Exception):  # it has ended
            ray.kill(self._actor(node))

    def _actor(self, node: str) -> Any:
        import ray

        return ray.get_actor(f"{self._prefix}{node}", namespace=NAMESPACE)
