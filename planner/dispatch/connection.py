"""The driver's connection to a Ray cluster. Connecting fails within seconds, and disconnecting has a timeout."""

import atexit
import contextlib
import logging
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from planner.dispatch.connection_errors import is_unanswered, refusal
from planner.dispatch.ray_internal import cluster_names, group_names, keeps_loopback, quiet, train_names
from planner.dispatch.ray_internal.compatibility import require
from planner.errors import ClusterUnreachable, RunError, UserError
from planner.local_cluster.embedded import how_busy
from planner.local_cluster.start_errors import is_late

# A running cluster answers at once, or within seconds over a slow link.
CONNECT_S = 5.0
# A running cluster disconnects a driver within 2 s. If the cluster is gone, Ray looks for it for a minute.
_LEAVE_S = 90.0
_MAX_PORT = 65535


def require_ray(address: str) -> None:
    """Check all private names of Ray that a run needs, before it starts a cluster or joins the one at `address`.

    It imports Ray, which reads its environment variables then (`planner.dispatch.launch.set_environment`). That takes
    seconds, so it looks first whether anything listens at the address (empty: a cluster of this process).

    Raises:
        ClusterUnreachable: nothing listens there.
        UserError: it is no address, or the installed Ray lacks a name.
    """
    if address:
        _require_listener(address)
    require(cluster_names, group_names, train_names)


@contextlib.contextmanager
def connected(address: str, *, verbose: bool, embedded: bool = False) -> Iterator[None]:
    """Connect to the cluster at `address` while the context is open.

    Args:
        address: host:port of the head, or what Ray resolves, such as `auto`.
        verbose: show Ray's own log.
        embedded: this process started that cluster.

    Raises:
        ClusterUnreachable: no cluster answers there.
        UserError: the cluster refuses the connection, ray was imported too early for an embedded one, or the installed
            Ray lacks a private name.
        RunError: the embedded cluster does not answer.
    """
    _require_listener(address)
    import ray
    from ray.exceptions import RayError

    require(cluster_names)
    if embedded:
        _require_loopback()
    try:
        ray.init(
            address=address,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
            configure_logging=True,
        )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        if embedded:
            raise RunError(_embedded_text(error)) from error
        kind = ClusterUnreachable if is_unanswered(error) else UserError
        raise kind(f"no Ray cluster at {address}: {refusal(error)}") from error
    with contextlib.nullcontext() if verbose else quiet():
        try:
            yield
        finally:
            _leave(address, ray.shutdown)


def _embedded_text(error: BaseException) -> str:
    """Why this process cannot use its own cluster. The machine's load is named only if something was too slow."""
    reason = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    if is_late(error):
        return f"the local Ray cluster does not answer (Ray: {reason}). {how_busy()}"
    return f"the local Ray cluster cannot be used. Ray says {type(error).__name__}: {reason}"


def require_free(*, is_local: bool) -> None:
    """Check that this process can connect to a cluster: Ray allows one connection at a time.

    Args:
        is_local: whether it will be a local one, for which ray must not have been imported with other variables.

    Raises:
        UserError: this process is connected, or has imported ray too early.
    """
    ray = sys.modules.get("ray")  # do not import ray for this check
    if ray is None:
        return
    if ray.is_initialized():
        raise UserError("this process is already connected to a Ray cluster. Call ray.shutdown() first")
    if is_local:
        _require_loopback()


def _require_loopback() -> None:
    if not keeps_loopback():
        raise UserError(
            "ray was imported before planner.run could set the variables that a local cluster needs. Import ray later, "
            "or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before you import it"
        )


def ray_listeners() -> tuple[str, str]:
    """Where the head's GCS ("host:port") and this node's raylet (path of a Unix socket) listen.

    The driver ends when either of them dies.
    """
    import ray

    return str(ray.get_runtime_context().gcs_address), str(_own_node()["RayletSocketName"])


def metrics_url() -> str:
    """Where Prometheus finds the metrics of this driver. Empty if its node exports none."""
    node = _own_node()
    port = node.get("MetricsExportPort")
    return f"http://{node['NodeManagerAddress']}:{port}/metrics" if port else ""


def _own_node() -> dict[str, Any]:
    """Ray's facts about the node that this driver is connected to."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    found: dict[str, Any] = next(node for node in ray.nodes() if node["NodeID"] == own)
    return found


def _leave(address: str, shutdown: Callable[[], None]) -> None:
    """Disconnect from the cluster, with a timeout: Ray would wait for a hung head without end."""
    leaving = threading.Thread(target=shutdown, name="planner-leave", daemon=True)
    leaving.start()
    leaving.join(_LEAVE_S)
    if leaving.is_alive():
        atexit.unregister(shutdown)  # Ray would try the same again when the interpreter exits
        text = f"the Ray cluster at {address} did not disconnect this driver within {_LEAVE_S:.0f} s: its head hangs"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _require_listener(address: str) -> None:
    """Check that something listens at the address. Ray itself tries a dead address for more than ten minutes.

    Raises:
        ClusterUnreachable: nothing listens there.
        UserError: it is no address.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return  # Ray resolves `auto` and similar values
    if not 0 < int(port) <= _MAX_PORT:
        raise UserError(f"--address {address}: there is no port {port}. Write 1 to {_MAX_PORT} (Ray's default is 6379)")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    # A host name that cannot be encoded for DNS is a UnicodeError, not an OSError.
    except (OSError, UnicodeError) as error:
        kind = ClusterUnreachable if isinstance(error, OSError) else UserError
        raise kind(f"no Ray cluster at {address}: {error}. Check --address (or RAY_ADDRESS), or omit it") from error
