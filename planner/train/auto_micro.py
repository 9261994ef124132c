"""`auto` caps: the largest micro-batch, in samples or in tokens, that fits into the memory of a group's devices.

Each group finds its own, when it starts. So a run that gets other GPUs, or more of them, has other micro-batches, and
the same samples in each step.
"""

import socket
from dataclasses import replace

import torch

from planner.base.disk import size_text
from planner.base.host_memory import available_bytes
from planner.data.longest import longest_sample
from planner.data.measured_memory import memory_of
from planner.errors import UserError
from planner.events.training import MicroBatchFitted
from planner.job import Job, workers_of
from planner.job.memory import JobMemory, gpu_need, largest_micro, largest_tokens, least_need, refusal
from planner.job.ways_out import Misfit, WayOut, changes
from planner.plan import BatchSizes, make_plan
from planner.plan.commit_size import NotKnown
from planner.train.footprint import footprint
from planner.train.setup import open_data_once
from planner.train.world import World, device_kind

_MOST_OF_HOST = 0.8


def sizes_that_fit(job: Job, world: World, sizes: BatchSizes) -> tuple[BatchSizes, MicroBatchFitted | None]:
    """The batch sizes with the largest `auto` cap that fits on every worker, and what to tell of it.

    It is at most that of `sizes`, which the run may have lowered. Unchanged and nothing if the job names numbers.

    Collective. One worker measures the model, or reads what was measured before.

    Raises:
        UserError: on every worker, if one sample does not fit, or what the model or the longest sample needs is not
            known.
    """
    if not job.batch.auto_cap:
        return sizes, None
    longest = _longest(job, world) if job.batch.max_tokens == "auto" else None
    memory = world.from_first(lambda: _memory(job, world.device, longest))
    num_bytes = min(world.gather(_device_bytes(world)))
    device = device_kind(world.device)
    found = world.agree(lambda: _fitting(job, memory, sizes, world.world_size, device, num_bytes))
    need = gpu_need(memory, make_plan(found, world.world_size), num_bytes)
    told = MicroBatchFitted(
        max_micro=found.max_micro,
        max_tokens=found.max_tokens if job.batch.max_tokens == "auto" else None,
        device=device,
        needed_bytes=need.total,
        device_bytes=num_bytes,
    )
    return found, told


def _longest(job: Job, world: World) -> int:
    """Tokens of the longest sample of the data, which no cap may be below. Collective. A generation opens it anyway."""

    def here() -> int:
        return longest_sample(job, open_data_once(job)[0]) or 1

    return max(world.gather(world.agree(here)))


def _memory(job: Job, device: torch.device, longest: int | None) -> JobMemory:
    found = memory_of(job, "cuda" if device.type == "cuda" else "cpu", footprint, longest=longest)
    if isinstance(found, NotKnown):
        raise UserError(f"batch.{job.batch.auto_cap} auto: {found.reason}. Write a number")
    return found


def _device_bytes(world: World) -> int:
    """Bytes of this worker's device, or its part if several workers share it. Collective."""
    if world.device.type == "cuda":
        properties = torch.cuda.get_device_properties(world.device)
        place, num_bytes = str(properties.uuid), int(properties.total_memory)
    else:
        place, num_bytes = "", int(_MOST_OF_HOST * available_bytes())
    here = (socket.gethostname(), place)
    return num_bytes // world.gather(here).count(here)


def _fitting(
    job: Job, memory: JobMemory, sizes: BatchSizes, world_size: int, device: str, num_bytes: int
) -> BatchSizes:
    if job.batch.max_tokens == "auto":
        if most := largest_tokens(memory, sizes, world_size, num_bytes):
            return replace(sizes, max_tokens=most)
        sizes = replace(sizes, max_tokens=memory.longest)
    elif sizes.max_tokens is None:
        if most := largest_micro(memory, sizes, world_size, num_bytes):
            return replace(sizes, max_micro=min(most, sizes.max_micro))
    elif gpu_need(memory, make_plan(sizes, world_size), num_bytes).total <= num_bytes:
        return sizes  # tokens decide what a micro-batch needs
    counts = range(world_size, max(min(workers_of(job).most, world_size + 64), world_size) + 1)
    fits = next((count for count in counts if least_need(memory, sizes, count, num_bytes).total <= num_bytes), 0)
    misfit = Misfit(job=job, sizes=sizes, world_size=world_size, num_bytes=num_bytes)
    if fits:
        raise UserError(
            f"batch.{job.batch.auto_cap} auto: with {world_size} workers one micro-batch does not fit into {device} "
            f"({size_text(num_bytes)}), with {fits} it does. Write workers.min: {fits}. Else: "
            f"{_advice(misfit, memory, misfit.smaller(memory))}"
        )
    ways = [*misfit.smaller(memory), *replace(misfit, world_size=counts[-1]).more_gpus(memory)]
    advice = _advice(misfit, memory, ways)
    raise UserError(f"batch.{job.batch.auto_cap} auto: {refusal(memory, sizes, counts, device, num_bytes)}. {advice}")


def _advice(misfit: Misfit, memory: JobMemory, ways: list[WayOut]) -> str:
    """What to do. A worker measures no other models, so it names the command that does."""
    found = [f"With {way.change} it fits." for way in ways if way.fits]
    if memory.device == "cpu":
        tried = [*(change.text for change in changes(misfit.job)), "a smaller model.context", "more nodes"]
        return " ".join([*found, f"Try, in this order: {', '.join(tried)}"])
    command = f"planner plan JOB --gpu {misfit.num_bytes // 2**30}g"
    if misfit.job.batch.max_tokens == "auto":  # for the longest sample, as here
        command = f"planner plan JOB --lengths --gpu {misfit.num_bytes // 2**30}g"
    return " ".join([*found, f"{command} tries settings one by one"])
