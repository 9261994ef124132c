"""Trains a job on local processes through a history of world sizes. It stops and resumes at each change."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.base.text import counted
from planner.errors import UserError
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.stages import SizePhase
from planner.store.storage import Storage
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.setup import Launch

if TYPE_CHECKING:  # importing it takes a second
    import torch

Worker = Callable[[int, Launch, int], GenerationEnd]
"""(rank, launch, step to stop at) -> how the generation ended. Runs in a worker process"""


def rehearse(
    workers: LocalWorkers,
    launch: Launch,
    parts: Sequence[SizePhase],
    worker: Worker,
    say: Callable[[str], None] = lambda _line: None,
    now: Callable[[str], None] = lambda _text: None,
) -> None:
    """Train the stages in order. Each resumes where the one before stopped. `now` gets what is done meanwhile.

    Raises:
        PlannerError: a worker raised it, died or hung.
    """
    for part in parts:
        now(f"training to step {part.end_step} of {parts[-1].end_step} at {counted(part.world_size, 'worker')}")
        workers.run(worker, part.world_size, launch, part.end_step)
        say(
            f"{part.end_step} of {parts[-1].end_step} steps done, the last ones at {counted(part.world_size, 'worker')}"
        )


def train_observed(rank: int, launch: Launch, end_step: int) -> GenerationEnd:
    """Train one stage on one worker, and record checksums. A `Worker` for `rehearse`, on the CPU."""
    del rank
    from planner.train.world import cpu_device

    return _train(launch, end_step, cpu_device)


def train_on_gpu(rank: int, launch: Launch, end_step: int) -> GenerationEnd:
    """The same on a GPU: one for each worker with NCCL, the first one for all of them with gloo."""
    import torch

    is_own = "nccl" in torch.distributed.get_backend_config()
    return _train(launch, end_step, lambda: torch.device("cuda", rank if is_own else 0))


def train_with_other_numbers(worker: Worker, rank: int, launch: Launch, end_step: int) -> GenerationEnd:
    """Train one stage as `worker` does, with other random numbers in the steps. With `partial`, a `Worker`."""
    from planner.rehearsal.randomness import other_numbers

    with other_numbers():
        return worker(rank, launch, end_step)


def gpu_backend(num_workers: int) -> str:
    """The backend of torch.distributed for workers on this machine's GPUs. NCCL takes one worker per GPU.

    Raises:
        UserError: torch sees no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError("--gpu: torch sees no GPU on this machine. Leave out --gpu to train on the CPU")
    return "cpu:gloo,cuda:nccl" if torch.cuda.device_count() >= num_workers else "gloo"


def _train(launch: Launch, end_step: int, choose_device: "Callable[[], torch.device]") -> GenerationEnd:
    from planner.rehearsal.observe import StepRecorder
    from planner.rehearsal.randomness import WithoutDropout, functions_without_dropout
    from planner.train.generation import train

    storage, hooks = Storage(launch.url), Hooks(should_stop=lambda step: step >= end_step)
    if launch.job.batch.equality == "bitwise":  # masks do not depend on the world size
        return train(launch, choose_device, replace(hooks, observe=StepRecorder(storage)))
    dropout = WithoutDropout()
    with functions_without_dropout():
        observe = StepRecorder(storage, dropout)
        return train(launch, choose_device, replace(hooks, begin=dropout.begin, observe=observe))
