"""Makes torch deterministic for `bitwise` jobs, and refuses what cannot be deterministic."""

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from planner.errors import TrainingFailed
from planner.job import Job

# Optimizers whose `foreach` form gives the same bits on shards as on whole tensors (tests/fsdp/test_bitwise.py). Fused
# AdamW differs in 29 of 75 shapes and Adafactor in 60 (CPU, torch 2.13), so neither may be added.
SHARD_INVARIANT = frozenset({"adamw", "rmsprop", "sgd"})


def set_up(job: Job) -> None:
    """Make torch in this process deterministic for a `bitwise` job, and reset it for other jobs.

    An operation without a deterministic form on this device raises an error when it is called (`named_refusals`).
    """
    torch.use_deterministic_algorithms(job.batch.equality == "bitwise")
    # By default, a deterministic torch fills all new memory before it is written, about 15 % of a step on GPUs
    # (NVIDIA/Megatron-LM#7093). That hides code which reads what nobody wrote, and makes nothing else deterministic.
    torch.utils.deterministic.fill_uninitialized_memory = job.batch.equality != "bitwise"  # type: ignore[attr-defined]
    if job.batch.equality != "bitwise":
        return
    # cuBLAS reads this at its first call. Without it, torch refuses deterministic matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Benchmarking chooses the algorithm that is fastest at the moment, so two workers could choose different ones.
    torch.backends.cudnn.benchmark = False
    # The number of threads changes how sums on the CPU are split. Ray and torchrun set it differently per node.
    torch.set_num_threads(max(int(job.workers.cpus), 1))


def require_shard_invariant(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer computes the same bits on shards as on whole tensors.

    Raises:
        TrainingFailed: the optimizer is not known to do so.
    """
    kind = type(optimizer).__name__
    # By the exact name: a subclass may compute something else.
    if kind.lower() in SHARD_INVARIANT and not any(group.get("fused") for group in optimizer.param_groups):
        return
    raise TrainingFailed(
        f"{kind} may round differently on shards than on whole tensors, so the weights would depend on the number of "
        "workers. Use AdamW, RMSprop or SGD, not fused, or set batch.equality: balanced"
    )


@contextlib.contextmanager
def named_refusals() -> Iterator[None]:
    """Turn torch's error for an operation without a deterministic form into planner's. It comes on all workers.

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
            f"{found[1]} has no deterministic form on this device (torch {torch.__version__}), which bitwise needs. "
            "Use another operation in the model or the objective, or set batch.equality: balanced"
        ) from error


# The beginning of torch's message (aten/src/ATen/Context.cpp, `alertNotDeterministic`).
_REFUSAL = re.compile(r"(\S+) does not have a deterministic implementation")


def device_text(device: torch.device) -> str:
    """Everything besides the job on which the last bit of a sum may depend: torch's version and the hardware."""
    if device.type == "cuda":
        return f"torch {torch.__version__} on {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__} on a CPU with {torch.backends.cpu.get_cpu_capability()}, {_cpu_vendor()}"


def _cpu_vendor() -> str:
    """The CPU's vendor, by which MKL and oneDNN choose kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")]
    return found[0] if found else platform.machine()
