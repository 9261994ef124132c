"""Linear layers whose frozen weights take 4 bits each (QLoRA, Dettmers et al. 2023, arXiv 2305.14314), in torch alone.

NF4: each block of 64 weights of a row is divided by its largest magnitude. Each quotient becomes the nearest of 16
levels, which are quantiles of a normal distribution. bitsandbytes packs a weight into the same codes and scales if its
rows are multiples of 64 (it takes blocks from the flattened weight).

A row is packed by itself, so every worker packs the rows of its shard, and FSDP gathers the bytes like any parameter.

    row of n weights    ->    ceil(n / 64) blocks of 32 bytes, two codes each, then ceil(n / 64) scales in float32
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from planner.errors import UserError

BLOCK = 64
"""weights with one scale"""
_SCALE_BYTES = 4
# What FSDP takes the bytes of a row for. Before torch 2.13 it cannot shard integers. It casts a parameter to the type
# in which the job computes, which is bfloat16 or the parameter's own, so it copies these bit by bit. A row has an even
# number of bytes. Nothing else may cast the layer.
_STORED = torch.bfloat16
# bitsandbytes' table, float32. Codes are places in it.
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class FourBitLinear(nn.Module):
    """A linear layer with a frozen weight in 4 bits. It computes with the weight in the type of its input."""

    def __init__(self, linear: nn.Linear) -> None:
        """Take the sizes of a layer, and its bias. The weight is not filled."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        num = row_bytes(linear.in_features) // _STORED.itemsize
        # A parameter, not a buffer: FSDP shards and gathers nothing else.
        self.weight = nn.Parameter(
            torch.empty(linear.out_features, num, dtype=_STORED, device=linear.weight.device), requires_grad=False
        )
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """`(..., in)` -> `(..., out)`."""
        packed = self.weight.view(torch.uint8)
        outputs: Tensor = _Product.apply(inputs, packed, self.in_features)  # type: ignore[no-untyped-call]
        return outputs if self.bias is None else outputs + self.bias


def quantizable(hf: Any) -> list[str]:
    """The names of a transformers model's layers that 4 bits are for: all linear ones but the head. No adapters."""
    head = hf.get_output_embeddings()
    return [
        name
        for name, module in hf.named_modules()
        # By the exact type: a subclass may do something else with its weight.
        if type(module) is nn.Linear and module is not head and ".lora_" not in name
    ]


def quantize(hf: Any) -> None:
    """Replace those layers, in place. The weights are not filled.

    Raises:
        UserError: the model has no such layer (GPT-2 has layers of its own).
    """
    names = quantizable(hf)
    if not names:
        raise UserError(
            f"model.frozen: nf4 packs layers of torch's nn.Linear, and {hf.config.model_type} has none but the head. "
            "Write model.frozen: fp32"
        )
    for name in names:
        path, _, key = name.rpartition(".")
        setattr(hf.get_submodule(path), key, FourBitLinear(hf.get_submodule(name)))


def row_lengths(model: nn.Module) -> dict[str, int]:
    """Name of a parameter in 4 bits -> weights per row."""
    return {
        f"{name}.weight": module.in_features
        for name, module in model.named_modules()
        if isinstance(module, FourBitLinear)
    }


def row_bytes(length: int) -> int:
    """Bytes of a packed row of so many weights."""
    return -(-length // BLOCK) * (BLOCK // 2 + _SCALE_BYTES)


def stored(rows: Tensor) -> Tensor:
    """`(n, in)` of any floating-point type -> rows of `FourBitLinear.weight`, which are those of `pack` as bfloat16."""
    return pack(rows).view(_STORED)


def pack(rows: Tensor) -> Tensor:
    """`(n, in)` of any floating-point type -> `(n, row_bytes(in))` uint8."""
    num_blocks = -(-rows.shape[1] // BLOCK)
    blocks = functional.pad(rows.float(), (0, num_blocks * BLOCK - rows.shape[1])).view(len(rows), num_blocks, BLOCK)
    scales = blocks.abs().amax(dim=-1)
    # A block of zeros has no largest magnitude to divide by.
    quotients = blocks / torch.where(scales > 0, scales, 1.0)[..., None]
    codes = torch.bucketize(quotients, _boundaries(rows.device), out_int32=True).to(torch.uint8).flatten(1)
    return torch.cat([codes[:, 0::2] << 4 | codes[:, 1::2], scales.view(torch.uint8)], dim=1)


def unpack(packed: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `pack`, up to rounding to the nearest level: `(n, length)` of a type."""
    num_blocks = -(-length // BLOCK)
    codes, scales = packed[:, : num_blocks * BLOCK // 2], packed[:, num_blocks * BLOCK // 2 :]
    blocks = _pairs(packed.device)[codes.int()].view(len(packed), num_blocks, BLOCK)
    # Some columns of a row are not contiguous, and only contiguous bytes can be viewed as floats.
    blocks.mul_(scales.contiguous().view(torch.float32)[..., None])
    return blocks.flatten(1)[:, :length].to(dtype)


class _Product(torch.autograd.Function):
    """`x W^T`. It keeps the packed weight for the backward pass, which unpacks it again."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, packed: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.length = length
        return functional.linear(inputs, unpack(packed, length, inputs.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        return grad @ unpack(packed, ctx.length, grad.dtype), None, None


@contextmanager
def own_tables() -> Iterator[None]:
    """Have tables of its own within, for tensors without values, which must not meet others."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for table in (_boundaries, _pairs):
        table.cache_clear()


@cache
def _boundaries(device: torch.device) -> Tensor:
    """Between neighbouring levels: halfway. At a boundary, the lower level is taken."""
    levels = torch.tensor(LEVELS, device=device)
    return (levels[1:] + levels[:-1]) / 2


@cache
def _pairs(device: torch.device) -> Tensor:
    """`(256, 2)`: the levels of a byte's two codes, the high one first."""
    levels, codes = torch.tensor(LEVELS, device=device), torch.arange(256, device=device)
    return torch.stack([levels[codes >> 4], levels[codes & 15]], dim=1)
