"""Gathering metrics over processes whose micro-batches have unequal sizes.

accelerate's `gather` needs equal shapes on every process. TRL's DPO trainer gathers a value per pair, and with an exact
split the processes have unequal numbers of pairs. The plan knows all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from planner.errors import TrainingFailed


@contextmanager
def uneven_gathers(accelerator: Any, sizes: Sequence[int], rank: int) -> Iterator[None]:
    """Let `accelerator.gather` take tensors of `sizes[rank]` rows, and leave out what a ghost computed.

    Args:
        accelerator: accelerate's Accelerator. `gather_for_metrics` calls its `gather`, too.
        sizes: samples of each process in this round. 0 for a ghost, which computes one.
        rank: of this process.
    """
    from accelerate.utils import recursively_apply

    gather_equal = accelerator.gather

    def gather(data: Any) -> Any:
        return recursively_apply(lambda tensor: gather_uneven(gather_equal, tensor, sizes, rank), data)

    # On the instance: `gather_for_metrics` finds it there before the method of the class.
    accelerator.gather = gather
    try:
        yield
    finally:
        del accelerator.gather


def gather_uneven(gather_equal: Callable[[Tensor], Tensor], tensor: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
    """The rows of all processes in the order of their ranks, without those of ghosts.

    Args:
        gather_equal: gathers tensors of equal shapes along the first dimension.
        tensor: a number, which counts as a sum over the micro-batch, or `(sizes[rank], ...)`.
        sizes: samples of each process.
        rank: of this process.

    Raises:
        TrainingFailed: the tensor has another number of rows.
    """
    mine, most = sizes[rank], max(sizes)
    if tensor.ndim == 0:
        return gather_equal(tensor if mine else torch.zeros_like(tensor))
    if len(tensor) != max(mine, 1):
        raise TrainingFailed(
            f"the trainer gathers {len(tensor)} values of a micro-batch of {max(mine, 1)} samples. planner.trl knows "
            "only values per sample. Report it with the trainer's loss"
        )
    padded = tensor.new_zeros((most, *tensor.shape[1:]))  # (largest micro-batch, ...)
    padded[:mine] = tensor[:mine]
    everyone = gather_equal(padded)  # (W * largest micro-batch, ...)
    return torch.cat([everyone[r * most : r * most + size] for r, size in enumerate(sizes)])
