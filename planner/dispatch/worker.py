"""What runs inside a Ray Train worker: choose a device, train one generation, tell the driver why not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.dispatch import mailbox
from planner.dispatch.ray_internal import kv_put
from planner.errors import PlannerError, TrainingFailed
from planner.train.hooks import Hooks
from planner.train.setup import Launch

MakeHooks = Callable[[Launch], Hooks]
"""called in each worker, in every generation; a function of a module or a partial of one, since Ray pickles it"""


def worker_hooks(_launch: Launch) -> Hooks:
    """What a Ray worker does besides training: it reports metrics, obeys a stop, and hands messages to the ledger."""
    import ray.train

    return Hooks(report=ray.train.report, should_stop=lambda _step: mailbox.stop_requested(), messages=mailbox.messages)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What the driver hands to every worker."""

    launch: Launch
    on_cpu: bool
    """train on the CPU even if the job asks for GPUs: the embedded cluster of a machine without one"""
    hooks: MakeHooks = worker_hooks


def train_worker(config: dict[str, Any]) -> None:
    """Ray Train's entry. Returning ends the run, raising restarts the worker group, parking waits for a resize.

    So a refusal, which trying again would not mend, returns: every worker has agreed on it. Anything else
    propagates, and Ray starts the next generation from the last commit.
    """
    import ray.train

    from planner.train.generation import train

    worker: WorkerConfig = config["worker"]
    try:
        outcome = train(worker.launch, partial(_device, worker), worker.hooks(worker.launch))
    except PlannerError as error:
        if ray.train.get_context().get_world_rank() == 0:
            kv_put(worker_refusal_key(worker.launch.launch_id), str(error))
        return
    if not outcome.finished:
        # All workers stopped at the same step, and committed it.
        ray.train.report({mailbox.PARKED: True, "commit_s": outcome.commit_s})
        mailbox.park()


def worker_refusal_key(launch_id: str) -> str:
    """Where the workers of a launch say why they will not go on."""
    return f"refusal-{launch_id}"


def _device(worker: WorkerConfig) -> Any:
    import ray.train.torch
    import torch

    if worker.launch.job.workers.gpus == 0 or worker.on_cpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingFailed(
            "the job asks for a GPU per worker, and this worker has none; set workers.gpus to 0 to train on the CPU"
        )
    return ray.train.torch.get_device()
