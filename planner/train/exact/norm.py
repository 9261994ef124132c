"""The global norm of sharded gradients, with the same bits for every split, or staged through the CPU."""

import torch
import torch.distributed as dist
from torch import Tensor

from planner.train.collectives import blocked
from planner.train.world import World


def pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views of a tensor, to be processed one by one, so that temporaries stay in the CPU's cache.

    On the CPU, a new large temporary costs more than the arithmetic, because the system maps and clears its pages.
    """
    return torch.split(tensor.view(-1), _PIECE_ON_CPU if tensor.device.type == "cpu" else _LARGEST_PIECE)


# Elements. A piece's float64 temporaries are 512 KiB (measured from 2^13 to 2^18: flat from 2^15 to 2^17).
_PIECE_ON_CPU = 2**16
# Bits of a square that each of two sums keeps: up to 2^33 elements of 2^29 stay below 2^62.
_SQUARE_BITS = 29
# float64 sums so many integers of 29 bits exactly, in any order.
_LARGEST_PIECE = 2 ** (53 - _SQUARE_BITS)


def exact_norm(world: World, shards: list[Tensor]) -> float:
    """The Euclidean norm over all elements of all workers' shards, with the same bits for every split.

    With x the largest magnitude, each (g / x)^2 in [0, 1] is split into two integers of 29 bits, which are summed
    exactly. An element loses at most 2^-59 of x^2, and the sum is at least x^2. So with N elements the norm's relative
    error is below N * 2^-60 (plus float64's own rounding): 2^-27 for 2^33 elements.
    """
    # `aminmax` raises an error for an empty tensor, and a shard may have no rows.
    shards = [shard for shard in shards if shard.numel()]
    extremes = [extreme for shard in shards for extreme in shard.aminmax()]
    largest = torch.stack(extremes).abs().max().double().cpu() if extremes else torch.zeros((), dtype=torch.float64)
    with blocked:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=world.object_group)
    scale = float(largest)
    if scale == 0 or not torch.isfinite(largest):
        return scale
    # The sum of one piece is exact in float64, the sum over pieces only in int64.
    found = [part for shard in shards for piece in pieces(shard) for part in _square_sums(piece, scale)]
    sums = (
        torch.stack(found).to(torch.int64).view(-1, 2).sum(dim=0).cpu() if found else torch.zeros(2, dtype=torch.int64)
    )
    with blocked:
        dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=world.object_group)
    high_sum, low_sum = sums.tolist()
    total = (high_sum << _SQUARE_BITS) + low_sum  # an exact integer in units of 2^-58
    return float(scale * (total * 2.0 ** (-2 * _SQUARE_BITS)) ** 0.5)


def _square_sums(piece: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Two sums over (g / scale)^2, as whole numbers in float64: of the leading 29 bits, and of the next 29."""
    squares = piece.double().div_(scale).square_().mul_(2.0**_SQUARE_BITS)
    high = squares.round()
    low = squares.sub_(high).mul_(2.0**_SQUARE_BITS).round_()
    return high.sum(), low.sum()


def staged_norm(shards: list[Tensor], group: dist.ProcessGroup) -> float:
    """The norm of all workers' shards by a sum of squares on the CPU, where DTensor's own collectives do not work."""
    squares = torch.nn.utils.get_total_norm(shards, foreach=True).double().square().cpu()
    with blocked:
        dist.all_reduce(squares, op=dist.ReduceOp.SUM, group=group)
    return float(squares.sqrt())
