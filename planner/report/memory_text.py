"""The memory of a job's workers beside that of a GPU, as text, columns and keys of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from planner.base.disk import size_text
from planner.errors import UserError
from planner.job import Job, batch_sizes
from planner.job.job import most_sample_tokens
from planner.job.memory import GpuNeed, JobMemory, gpu_need, largest_micro, largest_tokens, refusal, ways_out
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.by_length import ByLength
from planner.plan.commit_size import NotKnown
from planner.plan.factory import MAX_TOKENS
from planner.plan.gpu_kinds import GpuKind
from planner.plan.plan import ceil_div
from planner.report.plan_table import Column


def auto_note(job: Job, *, has_gpu: bool = False, has_rates: bool = False) -> str:
    """What a plan assumes of an `auto` cap where memory is not known. Empty if numbers decide.

    Args:
        job: the job.
        has_gpu: whether the user has named one. Else the text says how.
        has_rates: whether the plan has the caps of a measured run.
    """
    cap = job.batch.auto_cap
    if not cap or (cap == "max_micro" and job.batch.max_tokens is not None):
        return ""
    if has_rates:
        return (
            f"batch.{cap} auto: the table has the micro-batches of the measured run. At counts that it did not have, "
            "they are those of the next smaller one."
        )
    how = "" if has_gpu else " planner plan JOB --gpu NAME shows what fits"
    return (
        f"batch.{cap} auto: each worker group computes what fits into its GPUs. The table assumes that a share fits "
        f"whole.{how}"
    )


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
    tokens: Mapping[int, int]
    """world size -> the largest cap on tokens that fits. Empty without `batch.max_tokens`"""
    longest: int
    """tokens that the longest sample is taken to have"""
    is_of_data: bool
    """whether the data says so, and a longer one would be allowed"""

    def fits(self, world_size: int) -> bool:
        """Whether a worker fits."""
        return self.needs[world_size].total <= self.gpu.memory_bytes

    @property
    def full_rounds(self) -> dict[int, int]:
        """World size -> rounds of a step whose samples are all the longest. Without `batch.max_tokens`, empty."""
        by_length = (plan for plan in self.plans if isinstance(plan, ByLength))
        return {plan.world_size: _full_rounds(plan, self.longest) for plan in by_length}


def _full_rounds(plan: ByLength, longest: int) -> int:
    samples = max(1, min(plan.max_tokens // longest, plan.max_micro))
    return ceil_div(ceil_div(plan.global_batch, samples), plan.world_size)


def plan_memory(job: Job, memory: JobMemory, plans: Sequence[Plan], gpu: GpuKind) -> PlanMemory:
    """What each plan needs of a GPU. With an `auto` cap, each has the largest micro-batch that fits.

    Raises:
        UserError: a cap is `auto`, and nothing fits at any of these worker counts.
    """
    sizes, num_bytes = batch_sizes(job), gpu.memory_bytes
    counts, cap = [plan.world_size for plan in plans], job.batch.auto_cap
    largest, tokens = dict[int, int](), dict[int, int]()
    if sizes.max_tokens is None:
        least = replace(sizes, max_micro=1)
        largest = {count: largest_micro(memory, sizes, count, num_bytes) for count in counts}
    else:
        least, free = (replace(sizes, max_tokens=most) for most in (memory.longest, MAX_TOKENS))
        tokens = {count: largest_tokens(memory, free, count, num_bytes) for count in counts}
    found = tokens if cap == "max_tokens" else largest
    if cap and found:
        if not any(found.values()):
            why = refusal(memory, least, counts, gpu.name, num_bytes)
            raise UserError(f"batch.{cap} auto: {why}. Try, in this order: {', '.join(ways_out(job))}")
        plans = [make_plan(_capped(sizes, cap, most) if most else least, count) for count, most in found.items()]
    needs = {plan.world_size: gpu_need(memory, plan, num_bytes) for plan in plans}
    counted_size = memory.found.sample
    return PlanMemory(
        gpu=gpu,
        plans=tuple(plans),
        needs=needs,
        largest=largest,
        tokens=tokens,
        longest=memory.longest,
        is_of_data=counted_size.rows * counted_size.tokens < most_sample_tokens(job),
    )


def _capped(sizes: BatchSizes, cap: Literal["max_tokens", "max_micro"], most: int) -> BatchSizes:
    return replace(sizes, max_tokens=most) if cap == "max_tokens" else replace(sizes, max_micro=most)


def memory_columns(found: PlanMemory) -> list[Column]:
    """What a worker needs, the largest micro-batch that fits, and with a cap on tokens the rounds of full samples."""
    cells = {size: f"{size_text(need.total)}{'' if found.fits(size) else ' !'}" for size, need in found.needs.items()}
    needed = Column(title="memory", cells=cells)
    fits = {size: f"{most:,}" if most else "-" for size, most in (found.largest or found.tokens).items()}
    rounds = {size: str(rounds) for size, rounds in found.full_rounds.items()}
    more = [Column(title="full rounds", cells=rounds)] if rounds else []
    return [needed, Column(title="fits, tokens" if found.tokens else "fits", cells=fits), *more]


def memory_lines(found: PlanMemory | NotKnown) -> list[str]:
    """What the memory of the first and the last row is for, and what the columns mean."""
    if isinstance(found, NotKnown):
        return [f"memory not known: {found.reason}"]
    ends = dict.fromkeys([min(found.needs), max(found.needs)])
    lines = [f"memory of a worker at {_gpus(size)}: {need_text(found.needs[size])}" for size in ends]
    where = f"{found.gpu.name} ({size_text(found.gpu.memory_bytes)})"
    if found.largest:
        lines.append(f"fits: the largest micro-batch that fits into {where} and saves a round")
    if found.tokens:
        lines.append(f"fits, tokens: the largest batch.max_tokens that fits into {where} and may save a round")
        lines.append(f"full rounds: of a step whose samples all have {found.longest:,} tokens")
    if found.is_of_data:
        lines.append(f"memory is for samples of at most {found.longest:,} tokens (the longest of the data)")
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
            "largest_max_tokens": found.tokens.get(world_size),
            "longest_sample_tokens": found.longest,
            "full_rounds": found.full_rounds.get(world_size),
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
