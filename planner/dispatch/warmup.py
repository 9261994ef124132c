"""What a newcomer does while the group still trains: everything that is slow the first time, on a tiny job."""

import contextlib
import tempfile
from pathlib import Path

from planner.dispatch.worker import own_gpu
from planner.errors import PlannerError
from planner.job import Job
from planner.train.hooks import Hooks
from planner.train.setup import Launch, open_data_once


def warm_up(coming: Job) -> None:
    """Train a tiny job on the CPU in a process group of one, then open the coming job's data.

    torch imports much of FSDP and of its checkpoints on first use, which takes seconds on a busy core.
    """
    import ray.train.torch
    import ray.tune  # noqa: F401  # Ray needs both to start a group: 0.6 s of a resize
    import torch
    import torch.distributed as dist

    from planner.train.generation import train
    from planner.train.world import cpu_device

    if coming.workers.gpus:  # torch counts GPUs even for the tiny job
        own_gpu()
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
        torch.set_num_threads(1)  # the group still trains on this machine
        dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
        try:
            # The second run loads the first one's commit.
            for steps in (1, 2):
                longer = job.model_copy(update={"train": job.train.model_copy(update={"steps": steps})})
                train(Launch(job=longer, url=str(folder / "run")), cpu_device, Hooks())
        finally:
            dist.destroy_process_group()
            torch.set_num_threads(threads)
    with contextlib.suppress(PlannerError):  # the generation itself will report it
        open_data_once(coming)
