"""The driver's connection to a Ray cluster: found within seconds, and let go of without an endless wait."""

import atexit
import contextlib
import logging
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

from planner.dispatch.ray_internal import keeps_loopback, quiet
from planner.dispatch.refused import refusal
from planner.errors import RunError, UserError
from planner.local_cluster.embedded import how_busy

# A cluster that is there answers at once, and one behind a slow link in seconds.
CONNECT_S = 5.0
# One that answers lets a driver go within a second or two; for one that is gone, Ray looks for a minute.
_LEAVE_S = 90.0


@contextlib.contextmanager
def connected(address: str, *, verbose: bool, embedded: bool = False) -> Iterator[None]:
    """A connection to the cluster at `address`; `embedded` says that this process started that cluster.

    Raises:
        UserError: there is no cluster, it does not let us in, or ray was imported too early to reach an embedded one.
        RunError: the embedded cluster does not answer.
    """
    _require_listener(address)
    import ray
    from ray.exceptions import RayError

    if embedded and not keeps_loopback():
        raise UserError(
            "ray was imported before planner.run could set the variables that a local cluster needs; import it later, "
            "or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before it is imported"
        )
    try:
        ray.init(
            address=address,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
            configure_logging=True,
        )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        if embedded:
            words = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
            raise RunError(f"the local Ray cluster does not answer (Ray: {words}); {how_busy()}") from error
        raise UserError(f"no Ray cluster at {address}: {refusal(error)}") from error
    with contextlib.nullcontext() if verbose else quiet():
        try:
            yield
        finally:
            _leave(address, ray.shutdown)


def require_free() -> None:
    """Check that this process has no connection to a cluster yet: Ray holds one at a time.

    Raises:
        UserError: it has one.
    """
    ray = sys.modules.get("ray")  # not imported for it
    if ray is not None and ray.is_initialized():
        raise UserError("this process is connected to a Ray cluster already; call ray.shutdown() first")


def ray_listeners() -> tuple[str, str]:
    """Where the two Ray processes listen without which a driver ends: the head's GCS and its own node's raylet.

    The first is "host:port", the second the path of a Unix socket.
    """
    import ray

    context = ray.get_runtime_context()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return str(context.gcs_address), str(own["RayletSocketName"])


def _leave(address: str, shutdown: Callable[[], None]) -> None:
    """Let go of the cluster, but wait for no answer that does not come: Ray's own wait for a hung head has no end."""
    leaving = threading.Thread(target=shutdown, name="planner-leave", daemon=True)
    leaving.start()
    leaving.join(_LEAVE_S)
    if leaving.is_alive():
        atexit.unregister(shutdown)  # Ray would do the same again at the interpreter's end
        text = f"the Ray cluster at {address} has not let go of this driver for {_LEAVE_S:.0f} s: its head hangs"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _require_listener(address: str) -> None:
    """Ray tries a dead address for more than ten minutes; a connection shows in seconds that nobody is there."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # `auto` and the like: Ray's to resolve
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"no Ray cluster at {address}: {error}; check --address (or RAY_ADDRESS), or leave it out"
        ) from error
