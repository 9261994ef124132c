"""The memory of a job's workers beside that of a GPU, as text, columns and keys of JSON."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from planner.base.disk import size_text
from planner.base.text import counted
from planner.job import Job, batch_sizes
from planner.job.job import most_sample_tokens
from planner.job.memory import GpuNeed, JobMemory, gpu_need, largest_micro, largest_tokens, refusal
from planner.job.ways_out import Misfit, WayOut, WaysOut
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.by_length import ByLength
from planner.plan.commit_size import NotKnown
from planner.plan.factory import MAX_TOKENS
from planner.plan.gpu_kinds import GpuKind
from planner.plan.plan import Fit, ceil_div
from planner.report.plan_table import Column

_TRIED_ONE_BY_ONE = 64
"""worker counts below this. A plan and its memory take 0.3 ms, and a table may have 65,536 workers"""
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
    tokens: Mapping[int, int]
    """world size -> the largest cap on tokens that fits. Empty without `batch.max_tokens`"""
    fewest: int
    """the smallest world size that fits, also one without a row. That of the last row if none smaller does"""
    is_of_data: bool
    """whether the longest sample is that of the data, and a longer one would be allowed"""
    cap: Literal["max_tokens", "max_micro", ""] = ""
    """that is `auto`"""
    refused: str = ""
    """why a run with an `auto` cap would be refused at all of these worker counts"""
    ways: WaysOut | None = None
    """what was tried for the row that lacks the least. None if some row fits"""

    def fits(self, world_size: int) -> bool:
        """Whether a worker fits."""
        return self.needs[world_size].total <= self.gpu.memory_bytes

    @property
    def full_rounds(self) -> dict[int, int]:
        """World size -> rounds of a step whose samples are all the longest. Without `batch.max_tokens`, empty."""
        by_length = (plan for plan in self.plans if isinstance(plan, ByLength))
        return {plan.world_size: _full_rounds(plan, self.of_job.longest) for plan in by_length}

    @property
    def most(self) -> Mapping[int, int]:
        """World size -> the largest cap that fits, in tokens or in samples. 0 if none does."""
        return self.tokens or self.largest

    @property
    def kinds_of_fit(self) -> dict[int, Fit]:
        """World size -> whether its micro-batches are too large, as large as possible, or neither."""
        found: dict[int, Fit] = {}
        for plan in self.plans:
            has = plan.max_tokens if isinstance(plan, ByLength) else plan.max_micro_batch
            is_full = self.most[plan.world_size] <= has
            fits = self.fits(plan.world_size)
            found[plan.world_size] = ("full" if is_full else "unknown") if fits else "too_large"
        return found

    @property
    def misfits(self) -> list[int]:
        """The world sizes at which no worker fits, the one that lacks the least first."""
        wrong = [size for size in self.needs if not self.fits(size)]
        return sorted(wrong, key=lambda size: (self.needs[size].total, size))


def _full_rounds(plan: ByLength, longest: int) -> int:
    samples = max(1, min(plan.max_tokens // longest, plan.max_micro))
    return ceil_div(ceil_div(plan.global_batch, samples), plan.world_size)


def plan_memory(job: Job, memory: JobMemory, plans: Sequence[Plan], gpu: GpuKind) -> PlanMemory:
    """What each plan needs of a GPU. With an `auto` cap, each has the largest micro-batch that fits."""
    sizes, num_bytes = batch_sizes(job), gpu.memory_bytes
    counts, cap, refused = [plan.world_size for plan in plans], job.batch.auto_cap, ""
    largest, tokens = dict[int, int](), dict[int, int]()
    if sizes.max_tokens is None:
        largest = {count: largest_micro(memory, sizes, count, num_bytes) for count in counts}
    else:
        free = replace(sizes, max_tokens=MAX_TOKENS)
        tokens = {count: largest_tokens(memory, free, count, num_bytes) for count in counts}
    found = tokens if cap == "max_tokens" else largest
    if cap and found:
        least = _least(sizes, memory)
        refused = "" if any(found.values()) else refusal(memory, least, counts, gpu.name, num_bytes)
        plans = [make_plan(_capped(sizes, cap, most) if most else least, count) for count, most in found.items()]
    return PlanMemory(
        gpu=gpu,
        of_job=memory,
        plans=tuple(plans),
        needs={plan.world_size: gpu_need(memory, plan, num_bytes) for plan in plans},
        largest=largest,
        tokens=tokens,
        fewest=_fewest(memory, sizes, cap, max(counts), num_bytes),
        is_of_data=memory.found.sample.rows * memory.found.sample.tokens < most_sample_tokens(job),
        cap=cap,
        refused=refused,
    )


def _fewest(memory: JobMemory, sizes: BatchSizes, cap: str, most: int, gpu_bytes: int) -> int:
    """The smallest world size below `most` at which a worker fits, with the smallest micro-batches of an `auto` cap."""

    def fits(count: int) -> bool:
        if cap == "max_micro":
            return largest_micro(memory, sizes, count, gpu_bytes) > 0
        least = _least(sizes, memory) if cap else sizes
        return gpu_need(memory, make_plan(least, count), gpu_bytes).total <= gpu_bytes

    small = range(1, min(most, _TRIED_ONE_BY_ONE))
    large = range(len(small) + 1, most)
    # A small count may fit where the next one does not: one worker needs no NCCL. From then on, more GPUs need less.
    return next(filter(fits, small), None) or large.start + bisect_left(large, True, key=fits)


def _least(sizes: BatchSizes, memory: JobMemory) -> BatchSizes:
    """With the smallest micro-batches: the longest sample alone."""
    return replace(sizes, max_micro=1) if sizes.max_tokens is None else replace(sizes, max_tokens=memory.longest)


def _capped(sizes: BatchSizes, cap: Literal["max_tokens", "max_micro"], most: int) -> BatchSizes:
    return replace(sizes, max_tokens=most) if cap == "max_tokens" else replace(sizes, max_micro=most)


def misfit(job: Job, found: PlanMemory) -> Misfit | None:
    """The row that lacks the least, if no row fits."""
    if len(found.misfits) < len(found.needs):
        return None
    sizes = batch_sizes(job)
    if found.cap == "max_tokens":
        sizes = _least(sizes, found.of_job)
    return Misfit(job=job, sizes=sizes, world_size=found.misfits[0], num_bytes=found.gpu.memory_bytes)


def memory_columns(found: PlanMemory) -> list[Column]:
    """What a worker needs, the largest micro-batch that fits, and with a cap on tokens the rounds of full samples."""
    cells = {size: f"{size_text(need.total)}{'' if found.fits(size) else ' !'}" for size, need in found.needs.items()}
    needed = Column(title="memory", cells=cells)
    fits = {size: f"{most:,}" if most else "-" for size, most in found.most.items()}
    rounds = {size: str(rounds) for size, rounds in found.full_rounds.items()}
    more = [Column(title="full rounds", cells=rounds)] if rounds else []
    return [needed, Column(title="fits, tokens" if found.tokens else "fits", cells=fits), *more]


def memory_lines(found: PlanMemory | NotKnown) -> list[str]:
    """What the memory of the first and the last row is for, and what the columns mean."""
    if isinstance(found, NotKnown):
        return [f"memory not known: {found.reason}"]
    ends = dict.fromkeys([min(found.needs), max(found.needs)])
    lines = [f"memory of a worker at {counted(size, 'GPU')}: {need_text(found.needs[size])}" for size in ends]
    where = f"{found.gpu.name} ({size_text(found.gpu.memory_bytes)})"
    if found.largest:
        lines.append(f"fits: the largest micro-batch that fits into {where} and saves a round")
    if found.tokens:
        lines.append(f"fits, tokens: the largest batch.max_tokens that fits into {where} and may save a round")
        lines.append(f"full rounds: of a step whose samples all have {found.of_job.longest:,} tokens")
    if found.is_of_data:
        lines.append(f"memory is for samples of at most {found.of_job.longest:,} tokens (the longest of the data)")
    if found.misfits:
        lines.append(f"! does not fit into {where}{_not_tried(found)}")
    if found.refused:
        lines.append(f"batch.{found.cap} auto: a run would be refused, since {found.refused}")
    if found.ways is not None:
        lines.append(ways_text(found.ways))
    return lines


def _not_tried(found: PlanMemory) -> str:
    """How to find out what to change in a row that fits with no micro-batch, where nothing was tried. Else empty."""
    hopeless = [size for size in found.misfits if not found.most[size]]
    if found.ways is not None or not hopeless:
        return ""
    command = f"planner plan JOB --gpus {hopeless[0]} --gpu {found.gpu.name}"
    if found.is_of_data:
        command = f"planner plan JOB --lengths --gpus {hopeless[0]} --gpu {found.gpu.name}"
    return f". {command} tries settings that would fit"


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
            "largest_max_tokens": found.tokens.get(world_size),
            "longest_sample_tokens": found.of_job.longest,
            "full_rounds": found.full_rounds.get(world_size),
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
