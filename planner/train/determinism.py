"""Everything else that could make the same computation give other bits: switched off, or refused by name."""

import os

import torch

from planner.errors import TrainingFailed
from planner.job import Job

# Shown, tensor by tensor, to give the same bits on shards as on whole tensors (tests/fsdp/test_bitwise.py), in their
# `foreach` form. Fused AdamW differs in 29 of 75 shapes, Adafactor in 60 (CPU, torch 2.13): neither may be added.
SHARD_INVARIANT = frozenset({"adamw", "rmsprop", "sgd"})


def require(job: Job) -> None:
    """Make this process deterministic for a `bitwise` job.

    An operation that has no deterministic form on this device raises when it is first called, and is named.

    Raises:
        TrainingFailed: the optimizer is not known to be independent of sharding.
    """
    kind = job.train.optimizer.kind
    if kind not in SHARD_INVARIANT:
        raise TrainingFailed(
            f"train.optimizer.kind: {kind} may round differently on shards than on whole tensors, so the weights would "
            f"depend on the number of workers; write one of {', '.join(sorted(SHARD_INVARIANT))}, or "
            "batch.equality: batches"
        )
    # cuBLAS reads it at its first call; without it, deterministic matrix products are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # A sum on the CPU is cut by the number of threads, which Ray and torchrun choose by what else a node runs.
    torch.set_num_threads(max(int(job.workers.cpus), 1))


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
