"""Checksums of every tensor at every step. `planner verify` finds with them which step and tensor differ first.

A checksum is an integer sum of bit patterns, so it does not depend on how a tensor is sharded, and a single bit changes
it. It is not a digest: two errors could cancel. The commit's SHA-256 of whole tensors is the proof.
"""

import json

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from planner.rehearsal.randomness import GENERATORS, Draws, WithoutDropout
from planner.store.storage import Storage
from planner.train.hooks import PassCounts
from planner.train.state import TrainState

OBSERVED = "observed.jsonl"


class StepRecorder:
    """A `Hooks.observe` that appends one JSON line per step to `observed.jsonl` in the run's folder.

    `{"step": 3, "attempts": 1, "forward_passes": [by rank], "tensors": {name: [sums]}, "drawn": {generator: workers},
    "dropout_off": {module: probability}}`
    """

    def __init__(self, storage: Storage, dropout: WithoutDropout | None = None) -> None:
        self._storage, self._dropout, self._draws = storage, dropout, Draws()

    def __call__(self, step: int, state: TrainState, work: PassCounts) -> None:
        """Record one step. Called on every worker when gradients are ready and weights not yet updated."""
        gradients = {f"gradient/{n}": p.grad for n, p in state.model.named_parameters() if p.grad is not None}
        tensors = {**gradients, **state.tensors()}
        # Sum on the CPU: an optimizer keeps its step count there even if the weights are on a GPU.
        sums = [_bit_sums(tensor).cpu() for tensor in tensors.values()]
        passes = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        passes[dist.get_rank()] = work.forward_passes
        flat = torch.cat([passes, torch.tensor(self._draws()), *sums])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            by_rank, drawn, *parts = torch.split(flat, [len(passes), len(GENERATORS), *(len(s) for s in sums)])
            line = {
                "step": step,
                "attempts": work.attempts,
                "forward_passes": by_rank.tolist(),
                "tensors": {name: part.tolist() for name, part in zip(tensors, parts, strict=True)},
                "drawn": dict(zip(GENERATORS, drawn.tolist(), strict=True)),
                "dropout_off": self._dropout.found if self._dropout else {},
            }
            # The leading newline ends a half line that a killed worker may have left.
            self._storage.append(OBSERVED, f"\n{json.dumps(line)}\n".encode())


def _bit_sums(tensor: Tensor) -> Tensor:
    """One sum for each 16 bits of an element, shape `(itemsize / 2,)`, int64. Safe up to 2^47 elements."""
    halves_per_element = max(tensor.element_size() // 2, 1)
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
    else:
        # Every worker holds the whole tensor, so only rank 0 counts it.
        local = tensor if dist.get_rank() == 0 else tensor.new_empty(0)
    halves = local.detach().contiguous().view(-1).view(torch.int16).view(-1, halves_per_element)
    return halves.to(torch.int64).sum(dim=0)
