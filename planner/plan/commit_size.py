"""How large a commit is: the state of a run in bytes, the largest worker's part of it, and the time to write it.

The state is what a checkpoint holds: the trained weights, the optimizer's tensors, and a few small tensors. Frozen
weights that come from files are not in it. `planner.train.state.TrainState.tensors` makes it, and a test compares the
bytes on real workers (tests/fsdp/test_commit_bytes.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Shape = tuple[int, ...]

FLOAT32_BYTES = 4
"""Weights and optimizer state are float32, also in jobs of `train.precision: bf16`, which only computes in bfloat16"""
_INT64_BYTES = 8
_GIGA = 10**9

COPIES_ON_OWN_NODE: Final = 2
"""copies of a worker's state that its node keeps in memory, used in turns: one stays whole while the next is made"""
COPIES_ON_TWO_NODES: Final = 4
"""with as many of the workers of another node"""
COPIES: Mapping[Literal[1, 2, 4], str] = {
    COPIES_ON_TWO_NODES: "without copies of other nodes: a lost node costs the steps since the last commit",
    COPIES_ON_OWN_NODE: "without copies for resizes, which then go through storage",
    1: "with synchronous commits",
}
"""number of copies of each worker's state in host memory, most first -> how a run goes on if they do not fit"""


def most_copies(*, in_memory: bool) -> int:
    """The most copies of its state for which a worker needs host memory. One is for commits in the background."""
    return COPIES_ON_TWO_NODES if in_memory else 1


@dataclass(frozen=True, kw_only=True)
class ModelShapes:
    """The shapes of the parameters that a job trains. A parameter that two layers share counts once."""

    trained: Mapping[Shape, int]
    """shape -> number of parameters (tensors) of this shape. `{(1000,): 1}` stands for 1000 numbers in one tensor"""
    num_blocks: int
    """blocks that FSDP2 gathers as one unit each. The rest of the model is one more unit"""

    @property
    def num_parameters(self) -> int:
        """Trained numbers, as in "a model of 8 billion parameters"."""
        return sum(math.prod(shape) * count for shape, count in self.trained.items())

    @property
    def num_tensors(self) -> int:
        """Trained tensors."""
        return sum(self.trained.values())


@dataclass(frozen=True, kw_only=True)
class OptimizerTensors:
    """The tensors of state that an optimizer keeps for each parameter, all of them float32."""

    like_parameter: int
    """with the parameter's shape, sharded like it"""
    scalars: int
    """single numbers, whole on every worker"""


@dataclass(frozen=True, kw_only=True)
class CommitSize:
    """The bytes of a run's state after its first step. The files have about 2 kB more per tensor and worker."""

    shapes: ModelShapes
    optimizer: OptimizerTensors
    is_bitwise: bool = False
    """whether the state has the exponents of the fixed-point sums: one int64 per unit of FSDP2, and one more"""

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors of the state. A commit writes each of them once."""
        return self.worker_bytes(1)

    def worker_bytes(self, world_size: int, rank: int = 0) -> int:
        """Bytes of the state on one of `world_size` workers. Its copy of a commit takes as many in host memory.

        FSDP2 shards each tensor by rows: worker `rank` has the rows from `rank * ceil(n / W)` on, at most `ceil(n / W)`
        of them (`torch.chunk`). So worker 0, the default, has the most, and the last workers may have no row of a small
        tensor. Small tensors that are not sharded are whole on every worker.
        Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
        """
        return self._bytes(world_size, rank, rank + 1)

    def node_bytes(self, world_size: int, num_workers: int) -> int:
        """Bytes of the state on a node with `num_workers` of `world_size` workers, at most: those with the most."""
        return self._bytes(world_size, 0, num_workers)

    def commit_s(self, storage_gbps: float) -> float:
        """Seconds until a commit is durable at `storage_gbps`: 10^9 bytes per second that the storage takes in all.

        Raises:
            ValueError: the rate is not above 0.
        """
        if not storage_gbps > 0:
            raise ValueError(f"a storage rate must be above 0 GB/s, not {storage_gbps}")
        return self.state_bytes / (storage_gbps * _GIGA)

    def _bytes(self, world_size: int, first: int, end: int) -> int:
        """Bytes on the workers from `first` to `end`, without `end`."""
        sharded = sum(
            _rows(shape[0], world_size, first, end) * math.prod(shape[1:]) * count
            for shape, count in self.shapes.trained.items()
        )
        return sharded * FLOAT32_BYTES * (1 + self.optimizer.like_parameter) + self._whole_bytes * (end - first)

    @property
    def _whole_bytes(self) -> int:
        """Bytes of the tensors that every worker has whole."""
        # The rest of the model is one more unit, and `known` one more number (`planner.train.exact.gradient_sums`).
        exponents = self.shapes.num_blocks + 1 + 1 if self.is_bitwise else 0
        return self.shapes.num_tensors * self.optimizer.scalars * FLOAT32_BYTES + exponents * _INT64_BYTES


@dataclass(frozen=True, kw_only=True)
class NotKnown:
    """A commit's size cannot be told without training."""

    reason: str
    """why, and what to do"""


def _rows(num_rows: int, world_size: int, first: int, end: int) -> int:
    """The rows of a tensor that the workers from `first` to `end`, without `end`, have."""
    each = -(-num_rows // world_size)
    return min(end * each, num_rows) - min(first * each, num_rows)
