"""What runs in a Ray Train worker: choose a device, train one generation, report a refusal to the driver."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from planner.base.user_errors import UserCodeFailed
from planner.dispatch import mailbox
from planner.dispatch.keepers import keepers_of
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.errors import PlannerError, TrainingFailed
from planner.plan.lowered_caps import LoweredCaps
from planner.store.code_failure import CodeFailure, keep_failure
from planner.store.lowered_caps import caps_of_text
from planner.store.storage import Storage
from planner.train.hooks import Hooks
from planner.train.setup import Launch

_log = logging.getLogger(__name__)

MakeHooks = Callable[[Launch], Hooks]
"""called in each worker, in every generation. Must be picklable: a module's function, or a partial of one"""


def worker_hooks(launch: Launch) -> Hooks:
    """The hooks of a Ray worker: report metrics, stop on request, find keepers and limits, pass notes to the ledger."""
    import ray.train

    return Hooks(
        report=ray.train.report,
        should_stop=lambda _step: mailbox.stop_requested(),
        should_cut=mailbox.cut_requested,
        may_hold=mailbox.may_hold,
        keepers=partial(keepers_of, launch),
        collectives_s=partial(collectives_s, launch.launch_id),
        caps=partial(lowered_caps, launch.launch_id),
        events=mailbox.take_events,
    )


def collectives_s(launch_id: str) -> float:
    """Seconds that the controller lets the first collectives of the newest group wait. 0 if that is not known."""
    try:
        return float(kv_get(mailbox.collectives_key(launch_id)) or 0.0)
    except Exception:  # noqa: BLE001  # the worker trains with the usual timeout
        _log.warning("the timeout of the first collectives is not known", exc_info=True)
        return 0.0


def lowered_caps(launch_id: str) -> LoweredCaps | None:
    """The caps that the controller has published for the newest group. None: the run has lowered none."""
    try:
        return caps_of_text(kv_get(mailbox.caps_key(launch_id)))
    except Exception:  # noqa: BLE001  # the worker may run out of memory again, and the controller sees that
        _log.warning("the caps on micro-batches are not known", exc_info=True)
        return None


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What the driver sends to every worker."""

    launch: Launch = field(repr=False)
    """Ray may show the text of this object on its dashboard, and the launch has a secret"""
    on_cpu: bool
    """train on the CPU even if the job asks for GPUs, on an embedded cluster without GPUs"""
    hooks: MakeHooks = worker_hooks


def train_worker(config: dict[str, Any]) -> None:
    """The function that Ray Train calls in each worker.

    Returning ends the run, raising restarts the worker group, and parking waits for a resize. A refusal
    (`PlannerError`) is final and all workers agree on it, so it returns. Any other error propagates. The controller
    then decides whether a next generation starts from the last commit. Errors of the user's code are kept in the run.
    """
    import ray.train

    from planner.train.generation import train

    worker: WorkerConfig = config["worker"]
    try:
        outcome = train(worker.launch, partial(_device, worker), worker.hooks(worker.launch))
    except PlannerError as error:
        # All workers have the same error, so one tells it.
        if ray.train.get_context().get_world_rank() == 0:
            _keep(worker.launch, str(error), error.code_traceback)
            kv_put(mailbox.refusal_key(worker.launch.launch_id), str(error))
        return
    except UserCodeFailed as failed:
        if failed.origin != "peers":  # the failure that matters is another worker's
            _keep(worker.launch, str(failed), failed.error.traceback)
        raise
    if not outcome.finished:
        # All workers stopped at the same step, and committed it or copied it into memory.
        times = {"commit_s": outcome.commit_s, "durable_after_s": outcome.durable_after_s}
        ray.train.report({mailbox.PARKED: True, **times, "is_held": outcome.is_held})
        mailbox.park()


def _keep(launch: Launch, text: str, code_traceback: str) -> None:
    """Keep an error of the user's code in the run. Nothing without a traceback: the error is not theirs."""
    if code_traceback:
        keep_failure(Storage(launch.url), CodeFailure.now(launch.launch_id, text, code_traceback))


def _device(worker: WorkerConfig) -> Any:
    """The torch device of this worker."""
    import torch

    if worker.launch.job.workers.gpus == 0 or worker.on_cpu:
        return torch.device("cpu")
    device = own_gpu()
    if not torch.cuda.is_available():
        raise TrainingFailed(
            "the job asks for a GPU per worker, but this worker has none. Set workers.gpus to 0 to train on the CPU"
        )
    return device


@cache
def own_gpu() -> Any:
    """The torch device of this process's GPU, the same in every generation. Call it before anything that asks CUDA.

    Ray numbers a node's GPUs by CUDA_VISIBLE_DEVICES, and makes that longer when more workers start on the node. CUDA
    reads it once per process, even to count GPUs, and goes on by what it has read.
    """
    import ray
    import torch

    # Not `ray.train.torch.get_device`: it raises an error outside of a training function, and newcomers warm up before.
    ids = [str(number) for number in ray.get_gpu_ids()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return torch.device("cuda", visible.index(ids[0]) if ids else 0)
