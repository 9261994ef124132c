"""What a job needs of a worker's memory, and whether that fits into a GPU. Pure: others have measured the model."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from planner.base.disk import size_text
from planner.base.text import counted
from planner.job.compute import VARLEN, compute_rule, packing_setting
from planner.job.data_registry import data_spec_of
from planner.job.gradient import accumulator_placement, gradient_rule
from planner.job.job import Job, most_sample_tokens, sequences_of
from planner.job.model import GptModel, HfModel
from planner.job.objectives.lm import LmObjective
from planner.job.objectives.sft import SftObjective
from planner.job.optimizer import AdamW, OwnOptimizer, optimizer_tensors
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.by_length import ByLength
from planner.plan.factory import MAX_MICRO, MAX_TOKENS
from planner.plan.memory import Footprint, MemoryRules, SampleSize, WorkerMemory, worker_memory
from planner.plan.plan import ceil_div

Device = Literal["cuda", "cpu"]

# Measured on an H100 with torch 2.11 (`memory` in bench/results/gpu.json).
_CUBLAS_BYTES = 2 * 2**25
_CUDA_BYTES = 900 * 10**6
# Of what its tensors need, that torch's allocator holds and cannot use.
_SLACK = 0.05
_CPU_SLACK = 1.0
# Assumed: buffers of NCCL's channels between GPUs.
_NCCL_BYTES = 2**30
TOKEN_STEP = 64
"""caps on tokens that follow from memory, and lengths that are measured, are multiples of this"""


@dataclass(frozen=True, kw_only=True)
class JobMemory:
    """A job's model as it was measured, and what its job does with it."""

    found: Footprint
    rules: MemoryRules
    element_bytes: int
    """per trained parameter, of gradient sums"""
    longest: int
    """tokens of the longest sample, its sequences together"""
    mask_bytes_per_square: int
    """bytes per pair of tokens in one row, of a mask that keeps documents apart. 0 without one"""
    device: Device


@dataclass(frozen=True, kw_only=True)
class GpuNeed:
    """What one worker's process needs of its GPU."""

    tensors: WorkerMemory
    workspace: int
    """of cuBLAS"""
    slack: int
    """of torch's allocator"""
    outside: int
    """of CUDA and NCCL"""

    @property
    def total(self) -> int:
        """Bytes of the GPU."""
        return self.allocated + self.slack + self.outside

    @property
    def allocated(self) -> int:
        """Bytes that `torch.cuda.max_memory_allocated` would tell."""
        return self.tensors.peak_bytes + self.workspace


def sample_size(job: Job, longest: int | None = None) -> SampleSize:
    """The longest sample, in a micro-batch: of the job's data if that is known, else the longest that the job allows.

    Args:
        job: the job.
        longest: tokens of the longest sample of its data. Those of a pair may be of one of its sequences, to which the
            other one is padded. Rounded up, so that data of about the same length are measured once.
    """
    rows = sequences_of(job)
    tokens = most_sample_tokens(job) // rows
    # Partners make sequences of their own, as long as the context allows.
    if longest is not None and not data_spec_of(job.data).has_partners:
        each = longest if job.batch.max_tokens is None else ceil_div(longest, rows)
        tokens = min(tokens, TOKEN_STEP * ceil_div(each, TOKEN_STEP))
    return SampleSize(
        rows=rows,
        tokens=tokens,
        is_summed=isinstance(job.objective, LmObjective | SftObjective),
    )


def needs_second_model(job: Job) -> bool:
    """Whether workers hold a frozen reference beside the trained model while they train."""
    is_adapted = isinstance(job.model, HfModel) and job.model.lora is not None
    return job.reference.source == "model" and (job.reference.model is not None or not is_adapted)


def job_memory(job: Job, found: Footprint, device: Device, longest: int | None = None) -> JobMemory:
    """Join a measured model with its job. `longest`: as in `sample_size`."""
    rule, optimizer = gradient_rule(job), job.train.optimizer
    assert not isinstance(optimizer, OwnOptimizer)
    is_fused = isinstance(optimizer, AdamW) and device == "cuda" and not rule.is_fixed_point
    # torch's `foreach` kernels: a square root of the state, and a gradient with weight decay added to it.
    made = (optimizer_tensors(optimizer).scalars > 0) + (
        not isinstance(optimizer, AdamW) and optimizer.weight_decay > 0
    )
    return JobMemory(
        found=found,
        rules=MemoryRules(
            optimizer_numbers=optimizer_tensors(optimizer).like_parameter,
            update_numbers=0 if is_fused else int(made),
            is_fixed_point=rule.is_fixed_point,
            has_fast_exchange=device == "cuda",
        ),
        element_bytes=rule.element_bytes,
        longest=most_sample_tokens(job) if longest is None else longest,
        mask_bytes_per_square=_mask_bytes(job, device),
        device=device,
    )


def _mask_bytes(job: Job, device: Device) -> int:
    """Of a mask of booleans, and of the numbers that attention makes of it."""
    if not packing_setting(job) or device == "cpu":  # on a CPU, each document's attention is a call of its own
        return 0
    rule = compute_rule(job, on_gpu=True)
    assert rule is not None  # the model is not the user's own
    if isinstance(job.model, GptModel) or VARLEN not in rule.attention:
        return 0 if VARLEN in rule.attention else 1 + (2 if job.train.precision == "bf16" else 4)
    return 0


def tensors_of(memory: JobMemory, plan: Plan, gpu_bytes: int | None) -> WorkerMemory:
    """The tensors of one worker of a plan.

    Args:
        memory: of the job.
        plan: its largest micro-batch, rounds and number of workers decide.
        gpu_bytes: of one worker's device, which decide where gradients are summed. None: not known, and little.
    """
    found, sample = memory.found, memory.found.sample
    state = ceil_div(4 * found.units.trained + found.units.frozen_bytes, plan.world_size)
    free = max((gpu_bytes or 0) - _CUDA_BYTES - state, 0)
    is_by_length, samples = isinstance(plan, ByLength), float(plan.max_micro_batch)
    squares = plan.max_micro_batch * sample.rows * sample.tokens**2
    if isinstance(plan, ByLength):
        tokens = _most_row_tokens(plan, memory.longest)
        samples, squares = tokens / (sample.rows * sample.tokens), tokens**2
    return worker_memory(
        found,
        memory.rules,
        world_size=plan.world_size,
        samples=samples,
        # By length, a step may take more rounds than samples of equal length would.
        rounds=max(plan.accumulation_steps, 2 if is_by_length else 1),
        placement=accumulator_placement(plan, found.units.trained, free, memory.element_bytes),
        mask_bytes=memory.mask_bytes_per_square * squares,
    )


def _most_row_tokens(plan: ByLength, longest: int) -> int:
    """Tokens of the largest micro-batch that a plan by length may have: it has no more than the most samples have."""
    return min(plan.max_tokens, min(plan.max_micro, plan.global_batch) * longest)


def gpu_need(memory: JobMemory, plan: Plan, gpu_bytes: int) -> GpuNeed:
    """What one worker of a plan needs of a GPU with so many bytes, or of its part of a host's memory."""
    tensors = tensors_of(memory, plan, gpu_bytes)
    if memory.device == "cpu":
        return GpuNeed(tensors=tensors, workspace=0, slack=round(_CPU_SLACK * tensors.peak_bytes), outside=0)
    return GpuNeed(
        tensors=tensors,
        workspace=_CUBLAS_BYTES,
        slack=round(_SLACK * tensors.peak_bytes),
        outside=_CUDA_BYTES + (_NCCL_BYTES if plan.world_size > 1 else 0),
    )


def micro_batches(plan_share: int, most: int) -> Iterator[int]:
    """The sizes of micro-batches that differ in their number of rounds, the largest first, at most `most` each.

    A share of 10 samples: 10 in one round, 5 in two, 4 in three, 3 in four, 2 in five, 1 in ten.
    """
    size = ceil_div(plan_share, ceil_div(plan_share, most))
    while size > 1:
        yield size
        rounds = ceil_div(plan_share, size - 1)
        size = ceil_div(plan_share, rounds)
    yield 1


def refusal(memory: JobMemory, sizes: BatchSizes, counts: Sequence[int], device: str, num_bytes: int) -> str:
    """Why no worker count fits: the three that lack the least. With a cap on tokens in `sizes`, that cap decides."""
    lacking = sorted((least_need(memory, sizes, count, num_bytes).total - num_bytes, count) for count in counts)
    nearest = "; ".join(
        f"{counted(count, 'GPU')} {'lacks' if count == 1 else 'lack'} {size_text(bytes_)}{' each' if count > 1 else ''}"
        for bytes_, count in lacking[:3]
    )
    most = sizes.max_tokens
    what = "one sample" if most is None or most <= memory.longest else f"a micro-batch of {most:,} tokens"
    return f"{what} does not fit into {device} ({size_text(num_bytes)}): {nearest}"


def largest_micro(memory: JobMemory, sizes: BatchSizes, world_size: int, gpu_bytes: int) -> int:
    """The largest micro-batch in samples that fits a GPU and saves a round. 0 if one sample does not fit.

    From two rounds on, a smaller micro-batch needs less. A single round needs no gradient sums of rounds before it, so
    it may fit where the next smaller one does not.
    """
    plans = list(_plans_by_size(sizes, world_size))
    at_once = next((place for place, plan in enumerate(plans) if plan.accumulation_steps > 1), len(plans))
    for part in (plans[:at_once], plans[at_once:]):
        first = bisect_left(part, True, key=lambda plan: gpu_need(memory, plan, gpu_bytes).total <= gpu_bytes)
        if first < len(part):
            return part[first].max_micro
    return 0


def least_need(memory: JobMemory, sizes: BatchSizes, world_size: int, gpu_bytes: int) -> GpuNeed:
    """What a worker needs with the micro-batches that need the least: a sample each, or its whole share at once.

    With a cap on tokens, that cap decides.
    """
    if sizes.max_tokens is not None:
        return gpu_need(memory, make_plan(sizes, world_size), gpu_bytes)
    at_once = takewhile(lambda plan: plan.accumulation_steps == 1, _plans_by_size(sizes, world_size))
    plans = [make_plan(replace(sizes, max_micro=1), world_size), *list(at_once)[-1:]]
    return min((gpu_need(memory, plan, gpu_bytes) for plan in plans), key=lambda need: need.total)


def _plans_by_size(sizes: BatchSizes, world_size: int) -> Iterator[Plan]:
    """The plans of one worker count that differ in their number of rounds, those with the fewest rounds first."""
    share = make_plan(replace(sizes, max_micro=MAX_MICRO), world_size).step_cost
    for size in micro_batches(share, MAX_MICRO):
        yield make_plan(replace(sizes, max_micro=size), world_size)


def largest_tokens(memory: JobMemory, sizes: BatchSizes, world_size: int, gpu_bytes: int) -> int:
    """The largest cap on the tokens of a micro-batch that fits a GPU. 0 if the longest sample does not fit.

    It is at least that sample, and at most its share of the longest samples: with that, each step has the fewest rounds
    that `max_micro` allows. It is a multiple of 64 unless it is one of these bounds, or the cap of `sizes`.
    """
    share = min(ceil_div(sizes.global_batch, world_size), sizes.max_micro)
    most = min(share * memory.longest, sizes.max_tokens or MAX_TOKENS)

    def fits(tokens: int) -> bool:
        plan = make_plan(replace(sizes, max_tokens=tokens), world_size)
        return gpu_need(memory, plan, gpu_bytes).total <= gpu_bytes

    if fits(most):
        return most
    least = min(memory.longest, most)
    if not fits(least):
        return 0
    # Activations and masks grow with the tokens, and nothing else depends on them.
    steps = range(least // TOKEN_STEP + 1, ceil_div(most, TOKEN_STEP))
    fitting = bisect_left(steps, True, key=lambda step: not fits(step * TOKEN_STEP))
    return steps[fitting - 1] * TOKEN_STEP if fitting else least
