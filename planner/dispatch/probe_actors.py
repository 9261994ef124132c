"""The nodes of a Ray cluster for `planner probe`: one actor on each, which takes no CPU and no GPU."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.base.text import last_line
from planner.errors import PlannerError, RunError
from planner.probe.devices import Copies, copies
from planner.probe.node import Answer, NodeProbe

# A process on a busy node starts within seconds.
_START_S = 120.0
# Longer than any transfer, which ends by itself after 60 s and a flush.
_ANSWER_S = 180.0
_CLEAN_S = 30.0
# For a GPU that is in use. Importing torch takes seconds.
_GPU_S = 30.0
_NODE_ID_CHARS = 6


class RayNodes:
    """A `Nodes` of actors. Make it by `on_cluster`."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self._nodes = nodes
        self.names = _names(nodes)
        self.addresses = tuple(str(node["NodeManagerAddress"]) for node in nodes)
        self._actors: list[Any] = []
        self._folder = ""

    def start(self, *, url: str, folder: str, token: bytes) -> None:
        """Start the actors.

        Raises:
            RunError: one did not start.
        """
        import ray

        self._folder = f"{url}/{folder}"
        actor = ray.remote(num_cpus=0, num_gpus=0, max_concurrency=4, max_restarts=0)(_Actor)
        self._actors = [
            actor.options(scheduling_strategy=_only_on(node)).remote(
                url=url, folder=folder, node=str(place), address=self.addresses[place], token=token
            )
            for place, node in enumerate(self._nodes)
        ]
        started = [each.ready.remote() for each in self._actors]
        ends_s = time.monotonic() + _START_S
        for place, each in enumerate(started):
            self._get(place, each, ends_s)

    def ask(self, method: Callable[..., Answer], arguments: Mapping[int, tuple[object, ...]]) -> list[Answer]:
        """Call a method of `NodeProbe` on several nodes at once (see `planner.probe.node.Nodes`).

        Raises:
            PlannerError: a node failed. The message names it, and the others that failed in the same way.
        """
        asked = {place: self._actors[place].call.remote(method.__name__, *each) for place, each in arguments.items()}
        ends_s = time.monotonic() + _ANSWER_S
        answers = {place: self._get(place, each, ends_s) for place, each in asked.items()}
        failed = {place: answer for place, answer in answers.items() if isinstance(answer, PlannerError)}
        if failed:
            error = next(iter(failed.values()))
            names = [self.names[place] for place, each in failed.items() if str(each) == str(error)]
            raise type(error)(f"{', '.join(names)}: {error}")
        return list(answers.values())

    def copies(self) -> list[Copies]:
        """Each node's copies, by a task that takes one GPU of the node."""
        import ray

        task = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(copies)
        asked = {
            place: task.options(scheduling_strategy=_only_on(node)).remote(is_expected=True)
            for place, node in enumerate(self._nodes)
            if node["Resources"].get("GPU", 0) >= 1
        }
        return [
            _copies_of(asked[place]) if place in asked else Copies(missing="no GPU") for place in range(len(self.names))
        ]

    def clean(self) -> list[str]:
        """Stop all nodes and remove their files, one node after another. Returns what is left, as texts."""
        import ray
        from ray.exceptions import RayError

        # All are told before any is waited for.
        for actor in self._actors:
            actor.stop.remote()
        left = []
        for place, actor in enumerate(self._actors):
            try:
                answer = ray.get(actor.clean.remote(), timeout=_CLEAN_S)
            except RayError as error:
                answer = f"the probe's files may still be there, in {self._folder} ({last_line(str(error))})"
            left += [f"{self.names[place]}: {answer}"] if answer else []
            ray.kill(actor)
        self._actors = []
        return left

    def _get(self, place: int, asked: Any, ends_s: float) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        name = self.names[place]
        try:
            # The nodes before may have taken all the time. An answer that is there is still taken.
            return ray.get(asked, timeout=max(ends_s - time.monotonic(), 1.0))
        except GetTimeoutError as error:
            raise RunError(f"{name} does not answer: it, its network or its storage hangs") from error
        except RayError as error:
            text = last_line(str(error))
            raise RunError(f"{name}: the probe ended there ({text}). It needs this planner on every node") from error


@contextlib.contextmanager
def on_cluster(*, url: str, folder: str, token: bytes, warn: Callable[[str], None]) -> Iterator[RayNodes]:
    """The nodes of the connected cluster that offer a CPU or a GPU. On exit, everything is removed.

    Args:
        url: where to measure.
        folder: the probe's own folder there.
        token: 32 bytes that senders must know.
        warn: called with each thing that could not be removed.

    Raises:
        RunError: there is no such node, or one cannot start the probe.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and _offers(node["Resources"])]
    if not nodes:
        raise RunError("no node of the cluster offers a CPU or a GPU. Wait for its nodes, or start some")
    found = RayNodes(sorted(nodes, key=lambda node: (str(node["NodeManagerHostname"]), str(node["NodeID"]))))
    try:
        found.start(url=url, folder=folder, token=token)
        yield found
    finally:
        for text in found.clean():
            warn(text)


class _Actor:
    """A node's probe in a process of Ray. `stop` is answered while another call runs."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings  # making the probe may fail, and an error in a constructor would be Ray's
        self._probe: NodeProbe | None = None

    def ready(self) -> None:
        """Answer."""

    def stop(self) -> None:
        """Make a call that runs end soon."""
        if self._probe is not None:
            self._probe.stop()

    def clean(self) -> str:
        """Remove everything. Returns what could not be removed, as text."""
        return "" if self._probe is None else self._probe.clean()

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the probe. An error is the answer: Ray prints errors that nobody asks for."""
        try:
            self._probe = self._probe or NodeProbe(**self._settings)
            return getattr(self._probe, method)(*arguments)
        except PlannerError as error:
            return error


def _offers(resources: Mapping[str, float]) -> bool:
    return resources.get("CPU", 0) > 0 or resources.get("GPU", 0) > 0


def _names(nodes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Host names, with a part of Ray's id where several nodes are on one host."""
    hosts = [str(node["NodeManagerHostname"]) for node in nodes]
    return tuple(
        host if hosts.count(host) == 1 else f"{host}/{str(node['NodeID'])[:_NODE_ID_CHARS]}"
        for host, node in zip(hosts, nodes, strict=True)
    )


def _only_on(node: Mapping[str, Any]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)


def _copies_of(asked: Any) -> Copies:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        found: Copies = ray.get(asked, timeout=_GPU_S)
    except GetTimeoutError:
        # A task that waits for a GPU would take one later, when nobody wants its answer any more.
        ray.cancel(asked, force=True)
        return Copies(missing=f"no GPU was free within {_GPU_S:.0f} s")
    except RayError as error:
        return Copies(missing=f"the copies failed ({last_line(str(error))})")
    return found
