"""Trains a job on local processes through a history of world sizes. It stops and resumes at each change."""

from collections.abc import Callable, Sequence

from planner.base.text import counted
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.stages import SizePhase
from planner.store.storage import Storage
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.setup import Launch

Worker = Callable[[int, Launch, int], GenerationEnd]
"""(rank, launch, step to stop at) -> how the generation ended. Runs in a worker process"""


def rehearse(
    workers: LocalWorkers,
    launch: Launch,
    parts: Sequence[SizePhase],
    worker: Worker,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Train the stages in order. Each resumes where the one before stopped.

    Raises:
        PlannerError: a worker raised it, died or hung.
    """
    for part in parts:
        workers.run(worker, part.world_size, launch, part.end_step)
        say(
            f"{part.end_step} of {parts[-1].end_step} steps done, the last ones at {counted(part.world_size, 'worker')}"
        )


def train_observed(rank: int, launch: Launch, end_step: int) -> GenerationEnd:
    """Train one stage on one worker, and record checksums. A `Worker` for `rehearse`."""
    del rank
    from planner.rehearsal.observe import StepRecorder
    from planner.train.generation import train
    from planner.train.world import cpu_device

    hooks = Hooks(observe=StepRecorder(Storage(launch.url)), should_stop=lambda step: step >= end_step)
    return train(launch, cpu_device, hooks)
