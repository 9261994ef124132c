"""Where a worker's shard of each tensor lies: in the whole tensor, and in the memory of a copy."""

import math
from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from planner.keeper.copies import Piece
from planner.train.collectives import shard_of

# Of a page, so that the shards of a GPU can be page-locked one by one.
_ALIGNED_BYTES = 4096


def pieces_of(tensors: Mapping[str, Tensor]) -> tuple[Piece, ...]:
    """The pieces of this worker's shards of `tensors` (`TrainState.tensors`), one after the other in memory."""
    pieces: list[Piece] = []
    offset = 0
    for name, tensor in tensors.items():
        start, stop = _elements(tensor)
        num_bytes = (stop - start) * tensor.element_size()
        pieces.append(
            Piece(
                name=name,
                # The keeper knows no torch, so a type travels as its name.
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                start=start,
                stop=stop,
                offset=offset,
                num_bytes=num_bytes,
            )
        )
        offset += -(-num_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return tuple(pieces)


def _elements(tensor: Tensor) -> tuple[int, int]:
    """Which elements of the whole tensor, flattened, this worker has: `[start, stop)`."""
    if not isinstance(tensor, DTensor):
        return 0, tensor.numel()
    assert tensor.placements == (Shard(0),)
    rows = tensor.shape[0]
    # FSDP cuts dimension 0 as `torch.chunk` does: ceil(rows / W) each, so the last workers may have fewer rows or none.
    rows_each = -(-rows // tensor.device_mesh.size())
    first = min(tensor.device_mesh.get_local_rank() * rows_each, rows)
    in_a_row = math.prod(tensor.shape[1:])
    return first * in_a_row, first * in_a_row + shard_of(tensor).numel()
