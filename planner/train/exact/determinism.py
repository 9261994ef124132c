"""Everything else that could make the same computation give other bits: switched off, or refused by name."""

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from planner.errors import TrainingFailed
from planner.job import Job

# Shown, tensor by tensor, to give the same bits on shards as on whole tensors (tests/fsdp/test_bitwise.py), in their
# `foreach` form. Fused AdamW differs in 29 of 75 shapes, Adafactor in 60 (CPU, torch 2.13): neither may be added.
SHARD_INVARIANT = frozenset({"adamw", "rmsprop", "sgd"})


def set_up(job: Job) -> None:
    """Make this process deterministic for a `bitwise` job, and for no other: it may have served one before.

    An operation that has no deterministic form on this device raises when it is first called: `named_refusals`.
    """
    torch.use_deterministic_algorithms(job.batch.equality == "bitwise")
    if job.batch.equality != "bitwise":
        return
    # cuBLAS reads it at its first call; without it, deterministic matrix products are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    # A sum on the CPU is cut by the number of threads, which Ray and torchrun choose by what else a node runs.
    torch.set_num_threads(max(int(job.workers.cpus), 1))


def require_shard_invariant(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer computes the same bits on shards as on whole tensors.

    Raises:
        TrainingFailed: it is not known to.
    """
    kind = type(optimizer).__name__
    if kind.lower() in SHARD_INVARIANT and not any(group.get("fused") for group in optimizer.param_groups):
        return
    raise TrainingFailed(
        f"{kind} may round differently on shards than on whole tensors, so the weights would depend on the number of "
        "workers; use AdamW, RMSprop or SGD, not fused, or write batch.equality: balanced"
    )


@contextlib.contextmanager
def named_refusals() -> Iterator[None]:
    """Say in our words which operation torch refuses; every worker runs the same ones, so all of them raise.

    Raises:
        TrainingFailed: an operation has no deterministic form on this device.
    """
    try:
        yield
    except RuntimeError as error:
        found = _REFUSAL.search(str(error))
        if found is None:
            raise
        raise TrainingFailed(
            f"{found[1]} has no deterministic form on this device (torch {torch.__version__}), so equal bits cannot be "
            "promised; use another operation in the model or the objective, or write batch.equality: balanced"
        ) from error


# The beginning of what torch says (aten/src/ATen/Context.cpp, `alertNotDeterministic`).
_REFUSAL = re.compile(r"(\S+) does not have a deterministic implementation")


def device_text(device: torch.device) -> str:
    """What the last bit of a sum may depend on besides the job: torch and the kernels that it chooses here."""
    if device.type == "cuda":
        return f"torch {torch.__version__} on {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__} on a CPU with {torch.backends.cpu.get_cpu_capability()}, {_cpu_vendor()}"


def _cpu_vendor() -> str:
    """MKL and oneDNN choose kernels by it, too."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")]
    return found[0] if found else platform.machine()
