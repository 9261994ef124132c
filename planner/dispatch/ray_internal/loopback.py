"""A process group of torch's whose store listens on 127.0.0.1 alone, for workers that are all on this machine."""

import os
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta

from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.contract import TORCH_STORE
from planner.dispatch.ray_internal.presence import lacking
from planner.local_cluster.environment import LOOPBACK


def loopback_torch_config(backend: str, timeout_s: float) -> shapes.TorchConfig:
    """A `TorchConfig` whose workers are all on this machine: rank 0's store listens on 127.0.0.1 alone.

    With Ray's own `TorchConfig` it listens on all interfaces, and anybody who reaches it can read and write it.
    That is what one gets, with a warning, where Ray's internals are not those that this was written for.
    """
    from ray.train.torch import TorchConfig

    if lack := next(lacking(TORCH_STORE), ""):
        text = f"torch's store will listen on all interfaces: Ray's internals are not those of 2.60 ({lack})"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        stock: shapes.TorchConfig = TorchConfig(backend=backend, timeout_s=timeout_s)
        return stock
    return _loopback_config_class()(backend=backend, timeout_s=timeout_s)


def _loopback_config_class() -> Callable[..., shapes.TorchConfig]:
    """The class, made only here since a module of ours must load without Ray; pickled by value, as Ray does."""
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend

    class LoopbackBackend(_TorchBackend):  # type: ignore[misc]
        """Ray's backend with another start."""

        def on_start(self, worker_group: shapes.WorkerGroup, backend_config: shapes.TorchConfig) -> None:
            """Make the process group; Ray calls it in the controller."""
            _start_group(worker_group, backend_config, _set_torch_distributed_env_vars)

    class LoopbackTorchConfig(TorchConfig):  # type: ignore[misc]
        """Ray's config with that backend."""

        @property
        def backend_cls(self) -> type:
            """The backend that Ray makes of this config."""
            return LoopbackBackend

    return LoopbackTorchConfig


def _start_group(
    worker_group: shapes.WorkerGroup, config: shapes.TorchConfig, set_rank_variables: Callable[[], None]
) -> None:
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
