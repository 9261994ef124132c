"""From a job to its data, order, identity and length: what the workers, the driver and the audit derive alike.

No torch, no Ray.
"""

import math
from hashlib import sha256

from planner.data import Dataset, open_dataset
from planner.errors import ResumeRefused
from planner.job import Job, digest
from planner.order.order import Order
from planner.store.records import Identity


def open_data(job: Job) -> tuple[Dataset, Order]:
    """The job's data set, and the order of its rows.

    Raises:
        DataError: the data cannot be read, or has no row left to train on.
    """
    dataset = open_dataset(job.data, job.model.context)
    return dataset, Order(num_rows=dataset.num_rows, num_held_out=job.eval.samples, seed=job.train.seed)


def identity_of(job: Job, dataset: Dataset, order: Order) -> Identity:
    """What must stay the same for a run to be the same run."""
    cut = f"{dataset.fingerprint} {order.num_rows} rows, {order.num_held_out} held out"
    return Identity(
        global_batch=job.batch.global_batch,
        seed=job.train.seed,
        data=sha256(cut.encode()).hexdigest(),
        model=digest(job.model),
        optimizer=job.train.optimizer.kind,
    )


def total_steps(job: Job, order: Order) -> int:
    """Optimizer steps of the job; the last step of the last epoch runs on into the next one, never short."""
    if job.train.steps is not None:
        return job.train.steps
    assert job.train.epochs is not None  # the job was checked at birth
    return math.ceil(job.train.epochs * order.num_samples / job.batch.global_batch)


def require_same(before: Identity, now: Identity, accept: frozenset[str], where: str) -> list[str]:
    """Check that a job may go on with a run; what differs and was accepted by name, in words.

    Raises:
        ResumeRefused: something differs that the user has not named.
    """
    differences = before.differences(now)
    if refused := sorted(set(differences) - accept):
        field = refused[0]
        was, is_now = differences[field]
        raise ResumeRefused(
            f"{where}: the run was made with {field} {was[:16]}, the job says {is_now[:16]}; "
            f"go on with the old one, choose another checkpoint.path, or accept the change with --accept {field}"
        )
    return [f"{field}: {was[:16]} -> {is_now[:16]} (accepted by name)" for field, (was, is_now) in differences.items()]
