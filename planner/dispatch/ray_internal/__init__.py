"""Everything of Ray's that is not its public interface, in one folder; tested against Ray 2.60.

`contract.py` lists all of it, with what happens where a name is missing.
`presence.py` says what the installed Ray lacks.
"""

import contextlib
import math
import time
from collections.abc import Iterator

from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.contract import DRAIN, KEY_VALUE_STORE
from planner.dispatch.ray_internal.presence import require
from planner.errors import RunError

_NAMESPACE = b"planner"


def kv_put(key: str, word: str) -> None:
    """Leave a word for the driver in the cluster's key-value store (the GCS), from any of its processes.

    Raises:
        UserError: this Ray has no such store.
    """
    require(KEY_VALUE_STORE)
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), word.encode(), overwrite=True, namespace=_NAMESPACE)


def kv_get(key: str) -> str:
    """The word left under `key`, or the empty string.

    Raises:
        UserError: this Ray has no such store.
    """
    require(KEY_VALUE_STORE)
    from ray.experimental.internal_kv import _internal_kv_get

    return (_internal_kv_get(key.encode(), namespace=_NAMESPACE) or b"").decode()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the cluster's notices ("(raylet) The node ... has been marked dead") off this process's stdout.

    `ray.init(log_to_driver=False)` does not. Where Ray has no such function any more, the notices are printed.
    """
    try:
        from ray._private import worker

        printer = worker.print_to_stdstream
    except (ImportError, AttributeError):
        yield
        return
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printer


def keeps_loopback() -> bool:
    """Whether this process's Ray goes to 127.0.0.1 where it is told to. It decides so when it is imported.

    If not, it goes to the machine's outer address, where no embedded cluster listens, and tries for minutes.
    """
    try:
        from ray._private.ray_constants import ENABLE_RAY_CLUSTER
    except ImportError:
        return True
    return not ENABLE_RAY_CLUSTER


def drain_node(node_id: str, deadline_s: float, message: str) -> None:
    """Give notice that a node goes in `deadline_s` seconds, as a cloud's agent would. Call it connected.

    Ray ends an idle node at once; one that is busy it leaves to whoever gave the notice.

    Raises:
        RunError: the cluster does not accept it.
        UserError: this Ray gives no notices, or others.
    """
    require(DRAIN)
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    request_drain(GcsClient(address=ray.get_runtime_context().gcs_address), node_id, deadline_s, message)


def request_drain(client: shapes.GcsClient, node_id: str, deadline_s: float, message: str) -> None:
    """Tell Ray, through a `GcsClient`, that a node goes in `deadline_s` seconds; infinite if that is not known.

    A later call replaces the deadline.

    Raises:
        RunError: the cluster does not accept it.
    """
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    # For Ray, 0 is no deadline.
    deadline_ms = int((time.time() + deadline_s) * 1000) if deadline_s < math.inf else 0
    is_accepted, why_not = client.drain_node(node_id, reason, message, deadline_ms)
    if not is_accepted:
        raise RunError(f"node {node_id}: the notice was not accepted: {why_not}")
