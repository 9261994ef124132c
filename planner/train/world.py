"""This process among its peers: rank, device, mesh, and a gloo group of its own for words between workers."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from planner.errors import PlannerError, TrainingFailed
from planner.plan import FIRST_COLLECTIVES_S
from planner.train.collectives import needs_staging

T = TypeVar("T")

SHARED_GPU = "PLANNER_SHARED_GPU"
"""environment: workers that would train on the CPU train on the node's first GPU, all of them; for tests of a job, or
of planner, on a machine with one GPU (`planner.train.collectives` says how their tensors travel)"""


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's view of its group. `mesh` is one axis of all workers now; a second axis (HSDP) fits here."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    words: dist.ProcessGroup
    """gloo: small messages and agreements, apart from the gradients' collectives"""
    is_staged: bool = False
    """whether tensors on the device pass through the CPU to other workers: gloo is all there is for them"""

    @classmethod
    def join(cls, choose_device: Callable[[], torch.device]) -> "World":
        """Of the process group that is initialised already. Every worker must call it.

        Raises:
            PlannerError: on every worker, if any of them has no device to train on.
        """
        words = dist.new_group(backend="gloo", timeout=timedelta(seconds=FIRST_COLLECTIVES_S))
        device = _agree(words, lambda: _shared_gpu(choose_device()))
        _make_current(device)
        is_staged = needs_staging(device.type, dist.get_backend_config())
        return cls(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            device=device,
            mesh=_mesh(device.type, is_staged=is_staged),
            words=words,
            is_staged=is_staged,
        )

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        return _gather(self.words, value)

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank.

        Raises:
            PlannerError: the same on every rank, if `make` raised one on rank 0.
        """
        value: list[Any] = [self.agree(make) if self.rank == 0 else self.agree(lambda: None)]
        dist.broadcast_object_list(value, src=0, group=self.words)
        made: T = value[0]
        return made

    def agree(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank, and go on only if it went well on all of them.

        Raises:
            PlannerError: on every rank, if any rank's `work` raised one: the lowest rank's error.
        """
        return _agree(self.words, work)

    def set_timeout(self, seconds: float) -> None:
        """Give up collectives that begin from now on after so long; they raise, or (NCCL) end the process."""
        for group in {dist.group.WORLD, self.mesh.get_group(), self.words}:
            _set_pg_timeout(timedelta(seconds=seconds), group)

    def require_equal(self, what: str, value: str) -> None:
        """Check that a value derived by each worker for itself is the same on all.

        Raises:
            TrainingFailed: on every rank, with two of the values.
        """
        values = self.gather(value)
        for rank, theirs in enumerate(values):
            if theirs != values[0]:
                raise TrainingFailed(
                    f"{what} differs between workers: {values[0]} on worker 0, {theirs} on worker {rank}; "
                    "give every node the same files and the same versions"
                )


def _shared_gpu(chosen: torch.device) -> torch.device:
    if chosen.type != "cpu" or os.environ.get(SHARED_GPU, "0") == "0":
        return chosen
    if not torch.cuda.is_available():
        raise TrainingFailed(f"{SHARED_GPU} is set, and torch sees no GPU here; unset it to train on the CPU")
    return torch.device("cuda", 0)


def _make_current(device: torch.device) -> None:
    """Let this process compute on its own GPU: FSDP takes the current one, which is the node's first until it is set.

    DeviceMesh would choose by LOCAL_RANK, but only in a process that has not used CUDA yet.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def _mesh(device_type: str, *, is_staged: bool) -> DeviceMesh:
    names = ("shard",)
    if not is_staged:
        return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=names)
    # `init_device_mesh` makes a group of its own where the default one is gloo's and CUDA is there.
    group = dist.group.WORLD
    assert group is not None  # the process group is initialised
    return DeviceMesh.from_group(group, device_type, mesh_dim_names=names)


def cpu_device() -> torch.device:
    """For `World.join`: the device of a job that asks for none."""
    return torch.device("cpu")


def _gather(words: dist.ProcessGroup, value: T) -> list[T]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=words)
    return values


def _agree(words: dist.ProcessGroup, work: Callable[[], T]) -> T:
    result: T | None = None
    error: PlannerError | None = None
    try:
        result = work()
    except PlannerError as raised:
        error = raised
    gathered = _gather(words, error)
    errors = [(rank, e) for rank, e in enumerate(gathered) if e is not None]
    if errors:
        rank, first = errors[0]
        raise first if len(errors) == len(gathered) else type(first)(f"worker {rank}: {first}")
    return result  # type: ignore[return-value]  # no error means that work() returned
