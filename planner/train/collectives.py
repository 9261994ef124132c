"""Collectives of tensors, for any supported torch, and through CPU memory where gloo is the only backend.

NCCL refuses two workers on one GPU. gloo does not, but it is a library for CPU memory: of CUDA tensors it knows some
collectives, and ends the process in others (`DTensor.full_tensor` uses one, pytorch/pytorch#152645). So where
gloo is all that a process group has for a device, every tensor is copied to the CPU first, and the result back. That is
slow, and meant for tests on a machine with a single GPU: who wants it initialises the process group with `gloo` alone.

Shapes: W workers, n elements.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def needs_staging(device_type: str, backends: str) -> bool:
    """Whether tensors of a device must pass through the CPU; `backends` as `dist.get_backend_config` has them.

    "cpu:gloo,cuda:nccl" says no for "cuda", "cpu:gloo,cuda:gloo" says yes. The CPU's own tensors never do.
    """
    by_device = dict(part.split(":", 1) for part in backends.split(","))
    return device_type != "cpu" and by_device.get(device_type) == "gloo"


def is_staged(tensor: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether this tensor passes through the CPU in this group."""
    return needs_staging(tensor.device.type, dist.get_backend_config(group))


def is_gloo(tensor: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether the collectives of this tensor are gloo's, directly or through the CPU.

    gloo does a reduce-scatter as an all-reduce, which sends everything twice (torch 2.13 at W = 4: 1.5 bytes per byte
    handed in, seen on the loopback device; an exchange sends 0.75), so an exchange and W - 1 additions are faster.
    NCCL has a real one, and its rings cross between nodes once where an exchange crosses once per GPU.
    """
    return tensor.device.type == "cpu" or is_staged(tensor, group)


def all_gather(output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
    """`(n,)` on each worker -> `(W * n,)` in `output`, all parts by rank."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    if not is_staged(tensor, group):
        gather(output, tensor, group=group)
        return
    # As bytes: they are not computed with, and older versions of gloo do not know every type.
    received = torch.empty(output.nbytes, dtype=torch.uint8)
    gather(received, tensor.cpu().contiguous().view(-1).view(torch.uint8), group=group)
    output.copy_(received.view(output.dtype).view(output.shape))


def reduce_scatter(output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
    """`(W * n,)` on each worker -> `(n,)` in `output`: the sum over workers, for this worker's shard."""
    # 2.13 deprecates the older name, 2.9 knows no other.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    if not is_staged(tensor, group):
        scatter(output, tensor, op=dist.ReduceOp.SUM, group=group)
        return
    received = torch.empty(output.shape, dtype=output.dtype)
    scatter(received, tensor.cpu(), op=dist.ReduceOp.SUM, group=group)
    output.copy_(received)


def exchange(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """`(W * n,)` on each worker -> `(W, n)`: this worker's n elements, as every worker has them."""
    sent = tensor.cpu() if is_staged(tensor, group) else tensor
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received.view(group.size(), -1).to(tensor.device)


def shard_of(tensor: Tensor) -> Tensor:
    """This worker's part of a tensor, in the same memory; a tensor that is not sharded is its own."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that FSDP has cut into rows; one that is not sharded is whole. Every worker must call it."""
    if not isinstance(tensor, DTensor):
        return tensor
    group = tensor.device_mesh.get_group()
    return gather_rows(tensor, group) if is_staged(tensor, group) else tensor.full_tensor()


def gather_rows(tensor: DTensor, group: dist.ProcessGroup) -> Tensor:
    """All rows, on the CPU. FSDP2 gives `ceil(rows / W)` to each worker, the last ones fewer or none."""
    assert tensor.placements == (Shard(0),)
    shard, num_rows = shard_of(tensor).cpu(), tensor.shape[0]
    rows_each = -(-num_rows // group.size())
    padded = torch.zeros((rows_each, *tensor.shape[1:]), dtype=tensor.dtype)
    padded[: shard.shape[0]] = shard
    gathered = torch.empty((group.size() * rows_each, *tensor.shape[1:]), dtype=tensor.dtype)
    all_gather(gathered.view(-1), padded.view(-1), group)
    return gathered[:num_rows]


def let_fsdp_sum_gradients(model: nn.Module) -> None:
    """Let FSDP sum gradients over workers: the loss is divided by the global count already, so the sum is the mean."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no PREMUL_SUM, which FSDP would use for a factor of its own.
            module.set_force_sum_reduction_for_comms(True)


def stage(model: nn.Module) -> None:
    """Let FSDP gather weights and sum gradients by the functions above, in every module that it has cut."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # FSDP does not export its protocols for these, so mypy cannot check them.
            module.set_custom_all_gather(_AllGather())  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[arg-type]


class _Buffers:
    """The half of FSDP's communication protocols that makes buffers."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer as FSDP's default makes it."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Buffers):
    """FSDP's `AllGather` protocol."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: ARG002  # it is done when this returns, which FSDP takes for an answer
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
        """`(W * n,)` on each worker -> `(n,)` in `output`."""
        reduce_scatter(output, tensor, group)
