"""The memory of a job's workers beside that of a GPU, as text, columns and keys of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from planner.base.disk import size_text
from planner.base.text import counted
from planner.job import Job, batch_sizes
from planner.job.memory import GpuNeed, JobMemory, gpu_need, largest_micro, refusal
from planner.job.ways_out import Misfit, WayOut, WaysOut
from planner.plan import Plan, make_plan
from planner.plan.by_length import ByLength
from planner.plan.commit_size import NotKnown
from planner.plan.gpu_kinds import GpuKind
from planner.plan.plan import Fit
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
    of_job: JobMemory
    plans: tuple[Plan, ...]
    """of the rows"""
    needs: Mapping[int, GpuNeed]
    """world size -> what a worker needs"""
    largest: Mapping[int, int]
    """world size -> the largest micro-batch that fits. Empty with `batch.max_tokens`"""

    refused: str = ""
    """why a run with `batch.max_micro: auto` would be refused at all of these worker counts"""
    ways: WaysOut | None = None
    """what was tried for the row that lacks the least. None if some row fits"""

    def fits(self, world_size: int) -> bool:
        """Whether a worker fits."""
        return self.needs[world_size].total <= self.gpu.memory_bytes

    @property
    def kinds_of_fit(self) -> dict[int, Fit]:
        """World size -> whether its micro-batches are too large, as large as possible, or neither."""
        found: dict[int, Fit] = {}
        for plan in self.plans:
            largest = self.largest.get(plan.world_size)
            is_full = largest is not None and largest <= plan.max_micro_batch
            fits = self.fits(plan.world_size)
            found[plan.world_size] = ("full" if is_full else "unknown") if fits else "too_large"
        return found

    @property
    def misfits(self) -> list[int]:
        """The world sizes at which no worker fits, the one that lacks the least first."""
        wrong = [size for size in self.needs if not self.fits(size)]
        return sorted(wrong, key=lambda size: (self.needs[size].total, size))


def plan_memory(job: Job, memory: JobMemory, plans: Sequence[Plan], gpu: GpuKind) -> PlanMemory:
    """What each plan needs of a GPU. With `batch.max_micro: auto`, each has the largest micro-batch that fits."""
    sizes, num_bytes = batch_sizes(job), gpu.memory_bytes
    refused = ""
    largest = {
        plan.world_size: largest_micro(memory, sizes, plan.world_size, num_bytes)
        for plan in plans
        if not isinstance(plan, ByLength)
    }
    if job.batch.max_micro == "auto" and largest:
        refused = "" if any(largest.values()) else refusal(memory, sizes, list(largest), gpu.name, num_bytes)
        plans = [make_plan(replace(sizes, max_micro=largest[plan.world_size] or 1), plan.world_size) for plan in plans]
    needs = {plan.world_size: gpu_need(memory, plan, num_bytes) for plan in plans}
    return PlanMemory(gpu=gpu, of_job=memory, plans=tuple(plans), needs=needs, largest=largest, refused=refused)


def misfit(job: Job, found: PlanMemory) -> Misfit | None:
    """The row that lacks the least, if no row fits."""
    if len(found.misfits) < len(found.needs):
        return None
    return Misfit(job=job, sizes=batch_sizes(job), world_size=found.misfits[0], num_bytes=found.gpu.memory_bytes)


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
    lines = [f"memory of a worker at {counted(size, 'GPU')}: {need_text(found.needs[size])}" for size in ends]
    where = f"{found.gpu.name} ({size_text(found.gpu.memory_bytes)})"
    if found.largest:
        lines.append(f"fits: the largest micro-batch that fits into {where} and saves a round")
    if found.misfits:
        lines.append(f"! does not fit into {where}{_not_tried(found)}")
    if found.refused:
        lines.append(f"batch.max_micro auto: a run would be refused, since {found.refused}")
    if found.ways is not None:
        lines.append(ways_text(found.ways))
    return lines


def _not_tried(found: PlanMemory) -> str:
    """How to find out what to change in a row that fits with no micro-batch, where nothing was tried. Else empty."""
    hopeless = [size for size in found.misfits if not found.largest.get(size)]
    if found.ways is not None or not hopeless:
        return ""
    return f". planner plan JOB --gpus {hopeless[0]} --gpu {found.gpu.name} tries what would"


def ways_text(ways: WaysOut) -> str:
    """`Tried at 8 GPUs: train.precision: bf16 needs 61.2 GB (does not fit); 16 GPUs need 20.1 GB each (fits)`."""
    tried = "; ".join(_way_text(way, ways.world_size) for way in ways.tried)
    rest = [] if any(way.fits for way in ways.tried) else ["what remains is a smaller model.context"]
    return f"Tried at {counted(ways.world_size, 'GPU')}: {'. '.join(filter(None, [tried, *rest]))}"


def _way_text(way: WayOut, world_size: int) -> str:
    if way.needed_bytes is None:
        return f"{way.change} cannot be measured"
    verb, each = ("needs", "") if way.world_size == world_size else ("need", " each")
    return f"{way.change} {verb} {size_text(way.needed_bytes)}{each} ({'fits' if way.fits else 'does not fit'})"


def need_text(need: GpuNeed) -> str:
    """`61.2 GB, most in the loss: weights 12.7 GB, ...`."""
    items = [(name, getattr(need.tensors.items, key)) for key, name in _NAMES.items()]
    others = [("cuBLAS", need.workspace), ("allocator", need.slack), ("CUDA and NCCL", need.outside)]
    shown = ", ".join(f"{name} {size_text(num)}" for name, num in [*items, *others] if num)
    return f"{size_text(need.total)}, most of it {_MOMENTS[need.tensors.moment]}: {shown}"


def _way_keys(ways: WaysOut | None, world_size: int) -> list[dict[str, object]]:
    if ways is None or ways.world_size != world_size:
        return []
    return [
        {
            "change": way.change,
            "world_size": way.world_size,
            "needed_bytes": way.needed_bytes,
            "fits": way.fits,
        }
        for way in ways.tried
    ]


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
            "ways_out": _way_keys(found.ways, world_size),
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
