"""Collectives of tensors for any supported torch. Where gloo is the only backend, tensors pass through CPU memory.

NCCL refuses two workers on one GPU. gloo does not, but it supports only some collectives of CUDA tensors and ends the
process in others (`DTensor.full_tensor` uses one, pytorch/pytorch#152645). So where gloo is a device's only backend,
every tensor is copied to the CPU ("staged") and the result is copied back. That is slow. It is meant for tests on a
machine with one GPU. To use it, initialise the process group with `gloo` alone.

Shapes: W workers, n elements.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def needs_staging(device_type: str, backends: str) -> bool:
    """Whether tensors of a device must pass through the CPU. Never true for the CPU's own tensors.

    Args:
        device_type: such as "cuda".
        backends: from `dist.get_backend_config`. "cuda" needs staging with "cpu:gloo,cuda:gloo", but not with
            "cpu:gloo,cuda:nccl".
    """
    by_device = dict(part.split(":", 1) for part in backends.split(","))
    return device_type != "cpu" and by_device.get(device_type) == "gloo"


def is_staged(tensor: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether collectives of this tensor in this group pass through the CPU."""
    return needs_staging(tensor.device.type, dist.get_backend_config(group))


def is_gloo(tensor: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether gloo does the collectives of this tensor, directly or through the CPU.

    gloo does a reduce-scatter as an all-reduce, which sends everything twice. At W = 4 it sends 1.5 bytes per input
    byte (torch 2.13, measured on the loopback device), and an exchange sends 0.75. So an exchange and W - 1 additions
    are faster. NCCL has a real reduce-scatter. Its rings cross between nodes once, an exchange once per GPU.
    """
    return tensor.device.type == "cpu" or is_staged(tensor, group)


class _BlockedTime:
    """Seconds that this process's training thread has waited in collectives of gloo."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began_s = 0.0

    def __enter__(self) -> None:
        """Begin to count. Enter it around a collective that returns when it is done, and nothing else."""
        self._began_s = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        """Add the time since it was entered."""
        self.seconds += time.perf_counter() - self._began_s


blocked = _BlockedTime()
"""`with blocked:` counts. NCCL's collectives return before they are done, so for those it says nothing"""


def all_gather(output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Gather `(n,)` of each worker into `output`, `(W * n,)`, in the order of ranks."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    if not is_staged(tensor, group):
        with blocked:
            gather(output, tensor, group=group)
        return
    # As bytes, since older versions of gloo do not support every type.
    received = torch.empty(output.nbytes, dtype=torch.uint8)
    sent = tensor.cpu().contiguous().view(-1).view(torch.uint8)
    with blocked:
        gather(received, sent, group=group)
    output.copy_(received.view(output.dtype).view(output.shape))


def reduce_scatter(output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Sum `(W * n,)` over all workers, and write this worker's shard of the sum into `output`, `(n,)`."""
    # torch 2.13 deprecates the older name, 2.9 has only that.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    if not is_staged(tensor, group):
        with blocked:
            scatter(output, tensor, op=dist.ReduceOp.SUM, group=group)
        return
    received = torch.empty(output.shape, dtype=output.dtype)
    sent = tensor.cpu()
    with blocked:
        scatter(received, sent, op=dist.ReduceOp.SUM, group=group)
    output.copy_(received)


def all_to_all(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send each worker its n of `(W * n,)` elements. Returns `(W, n)`: this worker's elements from every worker."""
    sent = tensor.cpu() if is_staged(tensor, group) else tensor
    received = torch.empty_like(sent)
    with blocked:
        dist.all_to_all_single(received, sent, group=group)
    return received.view(group.size(), -1).to(tensor.device)


def shard_of(tensor: Tensor) -> Tensor:
    """This worker's shard of a tensor, in the same memory. A tensor that is not sharded is returned unchanged."""
    # `detach`: autograd refuses to write into a view of a parameter, as first weights and steps from memory are.
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def whole_on(tensor: Tensor, owner: int, group: dist.ProcessGroup) -> Tensor | None:
    """The whole of a tensor on the CPU of rank `owner`, None elsewhere. Collective, in a gloo group of all workers."""
    if not isinstance(tensor, DTensor):
        return tensor.cpu() if group.rank() == owner else None
    assert tensor.placements == (Shard(0),)
    shard, num_rows = shard_of(tensor).cpu(), tensor.shape[0]
    # FSDP cuts dimension 0 as `torch.chunk` does, and a gather needs equally many rows of every worker.
    rows_each = -(-num_rows // group.size())
    # As bytes, since gloo does not support every type.
    padded = torch.zeros((rows_each, *tensor.shape[1:]), dtype=tensor.dtype)
    padded[: shard.shape[0]] = shard
    sent = padded.view(-1).view(torch.uint8)
    parts = [torch.empty_like(sent) for _ in range(group.size())] if group.rank() == owner else None
    with blocked:
        dist.gather(sent, parts, dst=owner, group=group)
    if parts is None:
        return None
    return torch.cat(parts).view(tensor.dtype).view(-1, *tensor.shape[1:])[:num_rows]


def let_fsdp_sum_gradients(model: nn.Module) -> None:
    """Make FSDP sum gradients over workers instead of averaging. The loss is already divided by the global count."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # FSDP would use PREMUL_SUM for a factor, which gloo does not have.
            module.set_force_sum_reduction_for_comms(True)


def reshard(model: nn.Module) -> None:
    """Free the gathered weights of every module that FSDP has sharded."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def use_own_collectives(model: nn.Module) -> None:
    """Make FSDP gather weights and sum gradients by the functions of this file, in every module that it has sharded.

    They pass through the CPU where that is necessary, and count the time that they take.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # FSDP does not export its protocols for these, so mypy cannot check them.
            module.set_custom_all_gather(_AllGather())  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[arg-type]


class _Buffers:
    """The method of FSDP's communication protocols that makes buffers."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised buffer, as FSDP's default makes it."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Buffers):
    """FSDP's `AllGather` protocol."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: ARG002  # it is done when this returns, which FSDP accepts
    ) -> None:
        """Gather a module's weights."""
        all_gather(output_tensor, input_tensor, group)


class ReduceScatter(_Buffers):
    """FSDP's `ReduceScatter` protocol. A subclass may sum in another way."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002  # always a sum
        async_op: bool = False,  # noqa: ARG002  # FSDP does not ask for it
    ) -> None:
        """Sum a module's gradients."""
        self.reduce(output_tensor, input_tensor, group)

    def reduce(self, output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
        """Sum `(W * n,)` over all workers, and write this worker's shard of the sum into `output`, `(n,)`."""
        reduce_scatter(output, tensor, group)
