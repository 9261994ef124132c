"""This process among its peers: rank, device, mesh, and a gloo group of its own for words between workers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from planner.errors import PlannerError, TrainingFailed
from planner.train.patience import AT_FIRST_S

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's view of its group. `mesh` is one axis of all workers now; a second axis (HSDP) fits here."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    words: dist.ProcessGroup
    """gloo: small messages and agreements, apart from the gradients' collectives"""

    @classmethod
    def join(cls, choose_device: Callable[[], torch.device]) -> "World":
        """Of the process group that is initialised already. Every worker must call it.

        Raises:
            PlannerError: on every worker, if any of them has no device to train on.
        """
        words = dist.new_group(backend="gloo", timeout=timedelta(seconds=AT_FIRST_S))
        device = _agree(words, choose_device)
        return cls(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            device=device,
            mesh=init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",)),
            words=words,
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


def on_cpu() -> torch.device:
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
