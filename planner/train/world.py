"""One worker's view of its peers: rank, device, mesh, and a gloo group for small objects."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from planner.base.memory_errors import CPU
from planner.errors import PlannerError, TrainingFailed
from planner.plan import FIRST_COLLECTIVES_S
from planner.train.collectives import needs_staging

T = TypeVar("T")

SHARED_GPU = "PLANNER_SHARED_GPU"
"""environment variable: all workers that would train on the CPU train on the node's first GPU instead. For tests on a
machine with one GPU. `planner.train.collectives` describes how their tensors travel"""


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's view of its group. `mesh` has one axis with all workers. A second axis (HSDP) would go here."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    object_group: dist.ProcessGroup
    """gloo group for small objects and agreements, apart from the collectives of gradients"""
    is_staged: bool = False
    """whether tensors pass through the CPU to other workers, because gloo is the device's only backend"""
    collectives_s: float = FIRST_COLLECTIVES_S
    """timeout of collectives with which the group begins, before it has measured any of its own steps"""

    @property
    def is_gloo(self) -> bool:
        """Whether gloo does all collectives of tensors, on the CPU. They are done when they return."""
        return self.is_staged or self.device.type == "cpu"

    @classmethod
    def join(cls, choose_device: Callable[[], torch.device], collectives_s: float = FIRST_COLLECTIVES_S) -> "World":
        """The world of the default process group, which must be initialised. Every worker must call it.

        Args:
            choose_device: returns this worker's device.
            collectives_s: timeout of the group's first collectives. The default process group has its own until now,
                and keeps it if this is `FIRST_COLLECTIVES_S`.

        Raises:
            PlannerError: on every worker, if any of them has no device to train on.
        """
        # First of all: a worker without a device tells the others through it.
        object_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=collectives_s))
        device = _agree(object_group, lambda: _shared_gpu(choose_device()))
        make_current(device)
        is_staged = needs_staging(device.type, dist.get_backend_config())
        world = cls(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            device=device,
            mesh=_mesh(device.type, is_staged=is_staged),
            object_group=object_group,
            is_staged=is_staged,
            collectives_s=collectives_s,
        )
        if collectives_s != FIRST_COLLECTIVES_S:
            world.set_timeout(collectives_s)
        return world

    def gather(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks, on every rank."""
        return _gather(self.object_group, value)

    def gather_on_first(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks, on rank 0. An empty list elsewhere."""
        values: list[Any] = [None] * self.world_size if self.rank == 0 else []
        dist.gather_object(value, values, dst=0, group=self.object_group)
        return values

    def scatter_from_first(self, make: Callable[[], list[T]]) -> T:
        """Call `make` on rank 0, which returns a value for each rank, and return this rank's.

        Raises:
            PlannerError: on every rank, if `make` raised one on rank 0.
        """
        values = self.agree(make if self.rank == 0 else list)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values or None, src=0, group=self.object_group)
        made: T = mine[0]
        return made

    def from_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and return its result on every rank.

        Raises:
            PlannerError: on every rank, if `make` raised one on rank 0.
        """
        # The other ranks take part with nothing, so that an error of rank 0 reaches them before the broadcast.
        value: list[Any] = [self.agree(make) if self.rank == 0 else self.agree(lambda: None)]
        dist.broadcast_object_list(value, src=0, group=self.object_group)
        made: T = value[0]
        return made

    def agree(self, work: Callable[[], T]) -> T:
        """Call `work` on every rank and return its result, if it succeeded on all of them.

        Raises:
            PlannerError: on every rank the error of the lowest rank, if `work` raised one on any rank.
        """
        return _agree(self.object_group, work)

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of all collectives that begin from now on. gloo's raise an error, NCCL's end the process."""
        # A set: the mesh's group usually is the default one.
        for group in {dist.group.WORLD, self.mesh.get_group(), self.object_group}:
            # torch has no public function for it.
            _set_pg_timeout(timedelta(seconds=seconds), group)

    def require_equal(self, what: str, value: str) -> None:
        """Check that all workers have the same `value`, which each has derived for itself.

        Raises:
            TrainingFailed: on every rank, if two differ. The message has both values.
        """
        values = self.gather(value)
        for rank, theirs in enumerate(values):
            if theirs != values[0]:
                raise TrainingFailed(
                    f"{what} differs between workers: {values[0]} on worker 0, {theirs} on worker {rank}. "
                    "Give every node the same files and the same versions"
                )


def _shared_gpu(chosen: torch.device) -> torch.device:
    if chosen.type != "cpu" or os.environ.get(SHARED_GPU, "0") == "0":
        return chosen
    if not torch.cuda.is_available():
        raise TrainingFailed(f"{SHARED_GPU} is set, but torch sees no GPU here. Unset it to train on the CPU")
    return torch.device("cuda", 0)


def device_kind(device: torch.device) -> str:
    """The kind of a device: a GPU's name, or `CPU`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else CPU


def make_current(device: torch.device) -> None:
    """Make this worker's GPU the current device, which FSDP uses. The default is the node's first GPU.

    DeviceMesh would choose by LOCAL_RANK, but only in a process that has not used CUDA yet.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _mesh(device_type: str, *, is_staged: bool) -> DeviceMesh:
    names = ("shard",)
    if not is_staged:
        return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=names)
    # `init_device_mesh` would make a second group where the default one is gloo's and CUDA is available.
    group = dist.group.WORLD
    assert group is not None  # the process group is initialised
    return DeviceMesh.from_group(group, device_type, mesh_dim_names=names)


def cpu_device() -> torch.device:
    """The device for `World.join` in a job without GPUs."""
    return torch.device("cpu")


def _gather(object_group: dist.ProcessGroup, value: T) -> list[T]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=object_group)
    return values


def _by_worker(rank: int, error: PlannerError) -> PlannerError:
    """The error with the rank of the worker that raised it, while others did not."""
    named = type(error)(f"worker {rank}: {error}")
    named.code_traceback = error.code_traceback
    return named


def _agree(object_group: dist.ProcessGroup, work: Callable[[], T]) -> T:
    result: T | None = None
    error: PlannerError | None = None
    try:
        result = work()
    except PlannerError as raised:
        error = raised
    gathered = _gather(object_group, error)
    errors = [(rank, e) for rank, e in enumerate(gathered) if e is not None]
    if errors:
        rank, first = errors[0]
        raise first if len(errors) == len(gathered) else _by_worker(rank, first)
    return result  # type: ignore[return-value]  # no error means that work() returned
