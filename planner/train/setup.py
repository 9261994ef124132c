"""What every worker derives for itself from the launch and the world size it woke in."""

from dataclasses import dataclass
from typing import Any

from planner.base import work_counter
from planner.data import model_files
from planner.data.base import AnyDataset
from planner.data.paths import model_stamps, source_stamps
from planner.job import Job, batch_sizes
from planner.job.lengths import Lengths, lengths
from planner.order.order import Order
from planner.plan import Plan, make_plan
from planner.provenance.identity import DEVICE, MODEL, identity_of, open_data
from planner.store.records import TrainingIdentity


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the driver says to every worker, in every generation of one launch."""

    job: Job
    url: str
    """the run's folder"""
    launch_id: str = ""
    accept: frozenset[str] = frozenset()
    """fields of the run's identity that may differ on resume, because the user named them"""


def open_data_once(job: Job) -> tuple[AnyDataset, Order]:
    """The job's data and order, kept for the next generation in this process: a resize need not read it all again.

    Opened anew where a file's name, size or time of change says that it is not the same any more.

    Raises:
        DataError: the data cannot be read.
    """
    settings = (job.data, job.model, job.eval.samples, job.train.seed)
    key = (*settings, source_stamps(job.data.path), model_stamps(job.model))
    if _opened.get("key") != key:
        _opened.update(key=key, data=open_data(job, work_counter.count_work))
    data: tuple[AnyDataset, Order] = _opened["data"]
    return data


_opened: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every worker derives for itself."""

    dataset: AnyDataset
    order: Order
    identity: TrainingIdentity
    lengths: Lengths
    plan: Plan
    device: str = ""
    """what the bits depend on besides the job; empty unless they are promised"""
    model: str = ""
    """fingerprint of the files that the first weights come from; empty if they come from the job alone"""

    @property
    def facts(self) -> dict[str, str]:
        """What the ledger and the manifests say of the machine."""
        facts = {DEVICE: self.device, MODEL: self.model}
        return {name: value for name, value in facts.items() if value}


def set_up(job: Job, world_size: int) -> Setup:
    """Open the data and choose the plan.

    Raises:
        UserError: the data or the model's files cannot be read, or no plan serves these numbers.
    """
    dataset, order = open_data_once(job)
    model = model_files.fingerprint(job)
    model_files.require_same_tokens(job)
    return Setup(
        dataset=dataset,
        order=order,
        identity=identity_of(job, dataset, order),
        lengths=lengths(job, order.num_samples),
        plan=make_plan(batch_sizes(job), world_size),
        model=model,
    )
