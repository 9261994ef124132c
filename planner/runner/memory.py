"""The memory that a job's workers need, before it trains."""

from collections.abc import Callable

from planner.data.measured_memory import memory_of
from planner.data.model_folder import ModelFolder
from planner.job import Job
from planner.job.memory import Device, JobMemory
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


def _measure(
    job: Job, folder: ModelFolder | None, reference: ModelFolder | None, sample: SampleSize, device: Device
) -> Footprint:
    from planner.train.footprint import footprint  # torch, and transformers

    return footprint(job, folder, reference, sample, device)
