"""All code that uses Ray's private interfaces. Tested with Ray 2.60.

`cluster_names.py`, `group_names.py` and `train_names.py` list every private name, and what breaks without it.
`compatibility.py` finds names that the installed Ray lacks.
"""

import contextlib
import math
import time
from collections.abc import Iterator

from planner.dispatch.ray_internal import cluster_names
from planner.errors import RunError

_NAMESPACE = b"planner"


def kv_put(key: str, value: str) -> None:
    """Store a value in the cluster's key-value store (the GCS), from any process of the cluster."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), value.encode(), overwrite=True, namespace=_NAMESPACE)


def kv_get(key: str) -> str:
    """The value stored under `key`, or the empty string."""
    from ray.experimental.internal_kv import _internal_kv_get

    return (_internal_kv_get(key.encode(), namespace=_NAMESPACE) or b"").decode()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the cluster's messages ("(raylet) The node ... has been marked dead") off this process's stdout.

    Ray prints them in a thread of its own by this global name, without a setting: `ray.init(log_to_driver=False)` stops
    only the workers' output (ray/_private/worker.py:2482, Ray 2.60). So the name is replaced for a while.
    """
    from ray._private import worker

    printer = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printer


def keeps_loopback() -> bool:
    """Whether Ray in this process connects to 127.0.0.1 if told so. Ray decides this when it is imported.

    If not, it connects to the machine's outer address, where no embedded cluster listens, and tries for minutes.
    """
    from ray._private.ray_constants import ENABLE_RAY_CLUSTER

    return not ENABLE_RAY_CLUSTER


def drain_node(node_id: str, deadline_s: float, message: str) -> None:
    """Give notice that a node goes in `deadline_s` seconds, as a cloud's agent would. Call it connected.

    Ray ends an idle node at once. It does not end a busy node.

    Raises:
        RunError: the cluster did not accept the notice.
    """
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    request_drain(GcsClient(address=ray.get_runtime_context().gcs_address), node_id, deadline_s, message)


def request_drain(client: cluster_names.GcsClient, node_id: str, deadline_s: float, message: str) -> None:
    """Tell Ray that a node goes in `deadline_s` seconds. Infinite if not known. A later call replaces the deadline.

    Raises:
        RunError: the cluster did not accept the notice.
    """
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    # Ray takes 0 for "no deadline".
    deadline_ms = int((time.time() + deadline_s) * 1000) if deadline_s < math.inf else 0
    is_accepted, why_not = client.drain_node(node_id, reason, message, deadline_ms)
    if not is_accepted:
        raise RunError(f"node {node_id}: the cluster did not accept the notice: {why_not}")
