"""The memory that a job's workers need, before it trains."""

from collections.abc import Callable

from planner.data.measured_memory import memory_of
from planner.data.model_folder import ModelFolder
from planner.job import Job
from planner.job.memory import Device, JobMemory
from planner.job.ways_out import Change, Misfit, WaysOut, ways_out
from planner.plan.commit_size import NotKnown
from planner.plan.memory import Footprint, SampleSize


def job_memory_here(
    job: Job, device: Device, tell: Callable[[str], None], *, longest: int | None = None
) -> JobMemory | NotKnown:
    """What the job's workers need of memory, or why that is not known. A model is measured once on a machine.

    Args:
        job: the job.
        device: of its workers.
        tell: is told before a model is measured, which takes seconds.
        longest: tokens of the longest sample of its data. None: as many as the job allows.
    """
    return memory_of(job, device, _measure, tell, longest=longest)


def ways_out_here(misfit: Misfit, memory: JobMemory, tell: Callable[[str], None]) -> WaysOut:
    """What a plan that does not fit could change. Models with other settings are measured as `job_memory_here` does.

    `memory` is that of the job as it is, whose longest sample theirs have, too.
    """

    def measure(change: Change) -> JobMemory | NotKnown:
        said = f"measuring {change.job.name} with {change.text}: some seconds, once on this machine"
        return job_memory_here(change.job, memory.device, lambda _: tell(said), longest=memory.longest)

    return ways_out(misfit, memory, measure)


def _measure(
    job: Job, folder: ModelFolder | None, reference: ModelFolder | None, sample: SampleSize, device: Device
) -> Footprint:
    from planner.train.footprint import footprint  # torch, and transformers

    return footprint(job, folder, reference, sample, device)
