"""The memory of a job's workers beside that of a GPU, as text, columns and keys of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from planner.base.disk import size_text
from planner.errors import UserError
from planner.job import Job, batch_sizes
from planner.job.memory import GpuNeed, JobMemory, gpu_need, largest_micro, refusal, ways_out
from planner.plan import Plan, make_plan
from planner.plan.by_length import ByLength
from planner.plan.commit_size import NotKnown
from planner.plan.gpu_kinds import GpuKind
from planner.report.plan_table import Column

AUTO = (
    "batch.max_micro auto: each worker group computes what fits into its GPUs. The table assumes that a share fits "
    "whole."
)
"""for plans whose memory is not known"""
AUTO_WITHOUT_GPU = f"{AUTO} planner plan JOB --gpu NAME shows what fits"
"""for plans that are made without devices"""
AUTO_OF_RATES = (
    "batch.max_micro auto: the table has the micro-batches of the measured run. At counts that it did not have, they "
    "are those of the next smaller one."
)
"""for plans with rates"""
_NAMES = {
    "weights": "weights",
    "optimizer": "optimizer",
    "reference": "reference model",
    "gradients": "gradient sums",
    "gathered": "gathered weights",
    "exchange": "buffers of sums over workers",
    "activations": "activations",
    "update": "optimizer's step",
}
_MOMENTS = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "end": "at the end of the backward pass",
    "update": "in the optimizer's step",
}


@dataclass(frozen=True, kw_only=True)
class PlanMemory:
    """What the rows of a table need of one kind of GPU."""

    gpu: GpuKind
    plans: tuple[Plan, ...]
    """of the rows"""
    needs: Mapping[int, GpuNeed]
    """world size -> what a worker needs"""
    largest: Mapping[int, int]
    """world size -> the largest micro-batch that fits. Empty with `batch.max_tokens`"""

    def fits(self, world_size: int) -> bool:
        """Whether a worker fits."""
        return self.needs[world_size].total <= self.gpu.memory_bytes


def plan_memory(job: Job, memory: JobMemory, plans: Sequence[Plan], gpu: GpuKind) -> PlanMemory:
    """What each plan needs of a GPU. With `batch.max_micro: auto`, each has the largest micro-batch that fits.

    Raises:
        UserError: that is `auto`, and nothing fits at any of these worker counts.
    """
    sizes, num_bytes = batch_sizes(job), gpu.memory_bytes
    largest = {
        plan.world_size: largest_micro(memory, sizes, plan.world_size, num_bytes)
        for plan in plans
        if not isinstance(plan, ByLength)
    }
    if job.batch.max_micro == "auto" and largest:
        if not any(largest.values()):
            why = refusal(memory, sizes, list(largest), gpu.name, num_bytes)
            raise UserError(f"batch.max_micro auto: {why}. Try, in this order: {', '.join(ways_out(job))}")
        plans = [make_plan(replace(sizes, max_micro=largest[plan.world_size] or 1), plan.world_size) for plan in plans]
    needs = {plan.world_size: gpu_need(memory, plan, num_bytes) for plan in plans}
    return PlanMemory(gpu=gpu, plans=tuple(plans), needs=needs, largest=largest)


def memory_columns(found: PlanMemory) -> list[Column]:
    """Two columns: what a worker needs, and the largest micro-batch that fits."""
    cells = {size: f"{size_text(need.total)}{'' if found.fits(size) else ' !'}" for size, need in found.needs.items()}
    needed = Column(title="memory", cells=cells)
    if not found.largest:
        return [needed]
    return [needed, Column(title="fits", cells={size: str(most or "-") for size, most in found.largest.items()})]


def memory_lines(found: PlanMemory | NotKnown) -> list[str]:
    """What the memory of the first and the last row is for, and what the columns mean."""
    if isinstance(found, NotKnown):
        return [f"memory not known: {found.reason}"]
    ends = dict.fromkeys([min(found.needs), max(found.needs)])
    lines = [f"memory of a worker at {_gpus(size)}: {need_text(found.needs[size])}" for size in ends]
    where = f"{found.gpu.name} ({size_text(found.gpu.memory_bytes)})"
    if found.largest:
        lines.append(f"fits: the largest micro-batch that fits into {where} and saves a round")
    wrong = [size for size in found.needs if not found.fits(size)]
    if wrong:
        lines.append(f"! does not fit into {where}")
    return lines


def need_text(need: GpuNeed) -> str:
    """`61.2 GB, most in the loss: weights 12.7 GB, ...`."""
    items = [(name, getattr(need.tensors.items, key)) for key, name in _NAMES.items()]
    others = [("cuBLAS", need.workspace), ("allocator", need.slack), ("CUDA and NCCL", need.outside)]
    shown = ", ".join(f"{name} {size_text(num)}" for name, num in [*items, *others] if num)
    return f"{size_text(need.total)}, most of it {_MOMENTS[need.tensors.moment]}: {shown}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def memory_keys(found: PlanMemory | NotKnown, world_size: int) -> dict[str, object]:
    """The keys of JSON about memory at one world size."""
    if isinstance(found, NotKnown):
        return {"memory": None, "memory_unknown": found.reason}
    need = found.needs[world_size]
    return {
        "memory": {
            "gpu": found.gpu.name,
            "gpu_bytes": found.gpu.memory_bytes,
            "needed_bytes": need.total,
            "fits": found.fits(world_size),
            "largest_micro_batch": found.largest.get(world_size),
            "moment": need.tensors.moment,
            "items": {
                **asdict(need.tensors.items),
                "cublas": need.workspace,
                "allocator": need.slack,
                "outside": need.outside,
            },
        },
        "memory_unknown": "",
    }
