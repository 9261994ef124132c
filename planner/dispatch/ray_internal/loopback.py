"""A torch process group whose store listens only on 127.0.0.1, for workers that are all on this machine."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta

from planner.dispatch.ray_internal import train_names as names
from planner.dispatch.ray_internal.group_names import WorkerGroup
from planner.local_cluster.environment import LOOPBACK


def loopback_torch_config(backend: str, timeout_s: float) -> names.TorchConfig:
    """A `TorchConfig` for workers that are all on this machine. Rank 0's store listens only on 127.0.0.1.

    The store of Ray's own `TorchConfig` listens on all interfaces, and anyone who reaches it can read and write it: Ray
    gives torch an address and no store (ray/train/torch/config.py:270 to 330, Ray 2.60).
    """
    return _loopback_config_class()(backend=backend, timeout_s=timeout_s)


def _loopback_config_class() -> Callable[..., names.TorchConfig]:
    """The config class, defined here because this module must load without Ray. Ray pickles it by value."""
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend

    class LoopbackBackend(_TorchBackend):  # type: ignore[misc]
        """Ray's backend with a store on loopback."""

        def on_start(self, worker_group: WorkerGroup, backend_config: names.TorchConfig) -> None:
            """Make the process group. Ray calls it in the controller."""
            _start_group(worker_group, backend_config, _set_torch_distributed_env_vars)

    class LoopbackTorchConfig(TorchConfig):  # type: ignore[misc]
        """Ray's config with `LoopbackBackend`."""

        @property
        def backend_cls(self) -> type:
            """The backend class that Ray instantiates."""
            return LoopbackBackend

    return LoopbackTorchConfig


def _start_group(worker_group: WorkerGroup, config: names.TorchConfig, set_rank_variables: Callable[[], None]) -> None:
    """Start torch's process group as Ray's `on_start` does, but with rank 0's store on loopback."""
    import ray

    port, listen_fd = worker_group.execute_single(0, _listen)
    worker_group.execute(_set_master_variables, port=port)
    worker_group.execute(set_rank_variables)
    joined = [
        # The keyword cannot be `rank`: that is the name of `execute_single_async`'s first parameter.
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
    """Runs in rank 0. Returns a socket's port and its open file descriptor, which the store takes over."""
    listener = socket.create_server((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    # It stays open: another process could take a port that was only looked up before the store listens.
    return port, listener.detach()


def _set_master_variables(port: int) -> None:
    os.environ.update({"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)})


def _join(
    *, backend: str, world_rank: int, world_size: int, port: int, listen_fd: int | None, timeout_s: float
) -> None:
    """Runs in every worker. Make the process group over the store of rank 0."""
    import torch.distributed as dist

    if "nccl" in backend and "TORCH_NCCL_BLOCKING_WAIT" not in os.environ:  # as Ray does
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not exported by name
        LOOPBACK,
        port,
        world_size,
        is_master=world_rank == 0,
        timeout=timeout,
        wait_for_workers=False,  # the group's own barrier waits
        master_listen_fd=listen_fd,
    )
    dist.init_process_group(backend, store=store, rank=world_rank, world_size=world_size, timeout=timeout)
