"""Everything of Ray's that is not its public interface, in one folder; tested against Ray 2.60.

`contract.py` lists all of it, with what happens where a name is missing.
`presence.py` says what the installed Ray lacks.
"""

import contextlib
import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from planner.dispatch.ray_internal.contract import DRAIN, KEY_VALUE_STORE, TORCH_STORE
from planner.dispatch.ray_internal.presence import lacking, require
from planner.errors import RunError
from planner.local_cluster.embedded import LOOPBACK

_NAMESPACE = b"planner"


def put_word(key: str, word: str) -> None:
    """Leave a word for the driver in the cluster's key-value store (the GCS), from any of its processes.

    Raises:
        UserError: this Ray has no such store.
    """
    require(KEY_VALUE_STORE)
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), word.encode(), overwrite=True, namespace=_NAMESPACE)


def get_word(key: str) -> str:
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


def loopback_torch_config(backend: str, timeout_s: float) -> Any:
    """A `TorchConfig` whose workers are all on this machine: rank 0's store listens on 127.0.0.1 alone.

    With Ray's own `TorchConfig` it listens on all interfaces, and anybody who reaches it can read and write it.
    That is what one gets, with a warning, where Ray's internals are not those that this was written for.
    """
    from ray.train.torch import TorchConfig

    if lack := next(lacking(TORCH_STORE), ""):
        text = f"torch's store will listen on all interfaces: Ray's internals are not those of 2.60 ({lack})"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return TorchConfig(backend=backend, timeout_s=timeout_s)
    return _loopback_config_class()(backend=backend, timeout_s=timeout_s)


def _loopback_config_class() -> Any:
    """The class, made only here since a module of ours must load without Ray; pickled by value, as Ray does."""
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend

    class LoopbackBackend(_TorchBackend):  # type: ignore[misc]
        """Ray's backend with another start."""

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            """Make the process group; Ray calls it in the controller."""
            _start_group(worker_group, backend_config, _set_torch_distributed_env_vars)

    class LoopbackTorchConfig(TorchConfig):  # type: ignore[misc]
        """Ray's config with that backend."""

        @property
        def backend_cls(self) -> type:
            """The backend that Ray makes of this config."""
            return LoopbackBackend

    return LoopbackTorchConfig


def _start_group(worker_group: Any, config: Any, set_rank_variables: Callable[[], None]) -> None:
    """What the stock `on_start` does on the CPU or on GPUs, but for where rank 0 listens."""
    import ray

    port, listen_fd = worker_group.execute_single(0, _listen)
    worker_group.execute(_set_master_variables, port=port)
    worker_group.execute(set_rank_variables)
    joined = [
        # Not `rank`: that is the name of the first parameter here.
        worker_group.execute_single_async(
            world_rank,
            _join,
            backend=config.backend,
            world_rank=world_rank,
            world_size=len(worker_group),
            port=port,
            listen_fd=listen_fd if world_rank == 0 else None,
            timeout_s=config.timeout_s,
        )
        for world_rank in range(len(worker_group))
    ]
    ray.get(joined)


def _listen() -> tuple[int, int]:
    """In rank 0: a socket's port and its file descriptor, which stays open for the store to take over."""
    listener = socket.create_server((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    return port, listener.detach()


def _set_master_variables(port: int) -> None:
    os.environ.update({"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)})


def _join(
    *, backend: str, world_rank: int, world_size: int, port: int, listen_fd: int | None, timeout_s: float
) -> None:
    """In every worker: make the process group over the store of rank 0."""
    import torch.distributed as dist

    if "nccl" in backend and "TORCH_NCCL_BLOCKING_WAIT" not in os.environ:  # as the stock one does
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not exported by name
        LOOPBACK,
        port,
        world_size,
        is_master=world_rank == 0,
        timeout=timeout,
        wait_for_workers=False,  # rank 0 may come first: the group's own barrier waits
        master_listen_fd=listen_fd,
    )
    dist.init_process_group(backend, store=store, rank=world_rank, world_size=world_size, timeout=timeout)


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


def request_drain(client: Any, node_id: str, deadline_s: float, message: str) -> None:
    """The same through a `GcsClient`. An infinite `deadline_s`: nobody says when. A later call takes the place of this.

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


def limit_waits(client: Any, timeout_s: float) -> None:
    """Let no request of a `JobSubmissionClient` wait longer than so for its server: it sets no limit of its own."""
    if (ask := getattr(client, "_do_request", None)) is not None:
        client._do_request = partial(ask, timeout=timeout_s)


def server_version(client: Any) -> str:
    """The Ray version that a `JobSubmissionClient` has found on its cluster, or the empty string."""
    return getattr(client, "_server_ray_version", None) or ""
