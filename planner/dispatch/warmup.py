"""What a newcomer does while the others still train: all that is slow the first time, on a job of its own."""

import contextlib
import tempfile
from pathlib import Path

from planner.errors import PlannerError
from planner.job import Job
from planner.train.hooks import Hooks
from planner.train.setup import Launch, open_data_once


def warm_up(coming: Job) -> None:
    """Open the coming job's data, and train a tiny one on the CPU, in a process group of one that is gone afterwards.

    torch imports much of FSDP and of its checkpoints only when they are first used: seconds on a busy core.
    """
    import ray.train.torch
    import ray.tune  # noqa: F401  # both are named by what a group is started with: 0.6 s of a resize
    import torch
    import torch.distributed as dist

    from planner.train.generation import train
    from planner.train.world import cpu_device

    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="planner-warm-") as name:
        folder = Path(name)
        (folder / "text").write_text("all work and no play\n" * 20)
        job = Job.model_validate(
            {
                "name": "warm",
                "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
                "data": {"kind": "text", "path": str(folder / "text")},
                "batch": {"global": 2, "max_micro": 1},
                "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}},
                "eval": {"samples": 1},
                "workers": {"gpus": 0},
            }
        )
        torch.set_num_threads(1)  # the others are at work
        dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
        try:
            # Twice: a commit is loaded, too.
            for steps in (1, 2):
                longer = job.model_copy(update={"train": job.train.model_copy(update={"steps": steps})})
                train(Launch(job=longer, url=str(folder / "run")), cpu_device, Hooks())
        finally:
            dist.destroy_process_group()
            torch.set_num_threads(threads)
    with contextlib.suppress(PlannerError):  # it will be told when all workers look
        open_data_once(coming)
