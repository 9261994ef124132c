"""The launch that a driver sends, and the setup that every worker derives from it and from the world size."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planner.base import progress_counter
from planner.data.base import SampleDataset
from planner.data.job_folders import JobFolders
from planner.data.longest import require_fitting, require_fitting_lowered
from planner.data.model_folder import ModelFolder
from planner.data.paths import model_stamps
from planner.data.source_stamps import data_stamps
from planner.events.training import MicroBatchFitted
from planner.job import After, Job, batch_sizes
from planner.job.step_schedule import StepSchedule, lengths
from planner.order.order import Order
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.lowered_caps import LoweredCap, lowered_sizes
from planner.provenance.data_facts import data_facts
from planner.provenance.identity import ATTENTION, DEVICE, MODEL, identity_of, open_data
from planner.provenance.stage import STAGE, require_pinned
from planner.store.records import TrainingIdentity


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The driver's message to every worker. It is equal in all generations of one launch."""

    job: Job
    url: str
    """path or URL of the run's folder"""
    launch_id: str = ""
    launched_s: float = 0.0
    """when the driver started, in seconds since the epoch. 0 if not known"""
    accept: frozenset[str] = frozenset()
    """fields of the run's identity that the user allowed to differ on resume"""
    keeper_secret: str = field(default="", repr=False)
    """shared by the launch's keepers and workers. Empty: there are no keepers"""


def open_data_once(job: Job) -> tuple[SampleDataset, Order]:
    """The job's data and order, cached in this process so that a resize need not read all data again.

    The data is opened again if the name, size or modification time of a file has changed.

    Raises:
        DataError: the data cannot be read, or a sample is longer than `batch.max_tokens`.
    """
    settings = (job.data, job.model, job.eval.samples, job.eval.data, job.train.seed, job.batch.max_tokens)
    stamps = [data_stamps(data) for data in (job.data, job.eval_data) if data is not None]
    key = (*settings, *stamps, model_stamps(job.model))
    if _opened.get("key") != key:
        opened = open_data(job, progress_counter.count_work)
        require_fitting(job, opened[0])
        _opened.update(key=key, data=opened)
    data: tuple[SampleDataset, Order] = _opened["data"]
    return data


_opened: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The values that every worker derives by itself. Workers compare them before the first step."""

    dataset: SampleDataset
    order: Order
    identity: TrainingIdentity
    lengths: StepSchedule
    plan: Plan
    model: str
    """fingerprint of the files of the first weights. Empty if the weights follow from the job alone"""
    folders: JobFolders
    after: After | None
    """the commit of an earlier run that the first weights are from"""
    sizes: BatchSizes
    """the job's, with the caps that were lowered for a kind of device of this group"""
    lowered: tuple[LoweredCap, ...]
    """why those caps are lower than the job's"""
    fitted: MicroBatchFitted | None = None
    """what `batch.max_micro: auto` became. None: the job names a number"""
    device: str = ""
    """hardware and torch, on which `bitwise` results depend. Empty in other jobs"""
    attention: str = ""
    """what `model.attention: auto` became, where workers have several ways. Else empty"""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts about device, attention, model files, earlier run and data for the ledger and the manifests."""
        stage = self.after and self.after.model_dump()
        facts = {
            DEVICE: self.device,
            ATTENTION: self.attention,
            MODEL: self.model,
            STAGE: stage,
            **data_facts(self.dataset, self.order),
        }
        return {name: value for name, value in facts.items() if value}


def set_up(
    job: Job,
    world_size: int,
    lowered: tuple[LoweredCap, ...] = (),
    *,
    sizes: BatchSizes | None = None,
    fitted: MicroBatchFitted | None = None,
) -> Setup:
    """Open the data and make the plan.

    Args:
        job: the job.
        world_size: of the group.
        lowered: the lowerings of caps for the devices of the group.
        sizes: the batch sizes with what fits into those devices. None: those of the job.
        fitted: what to tell of those.

    Raises:
        UserError: the data or the model's files cannot be read, or no plan fits the job at this world size.
    """
    dataset, order = open_data_once(job)
    folders = JobFolders.of(job, ModelFolder.find)
    model = folders.fingerprint()
    folders.require_same_tokens()
    sizes = lowered_sizes(sizes or batch_sizes(job), lowered)
    if lowered and sizes.max_tokens is not None:
        require_fitting_lowered(job, dataset, sizes.max_tokens)
    return Setup(
        dataset=dataset,
        order=order,
        identity=identity_of(job, dataset, order),
        lengths=lengths(job, order.num_samples),
        plan=make_plan(sizes, world_size),
        model=model,
        folders=folders,
        after=require_pinned(job),
        sizes=sizes,
        lowered=lowered,
        fitted=fitted,
    )
