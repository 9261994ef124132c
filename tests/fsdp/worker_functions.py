"""What the tests run inside worker processes, and the jobs they run."""

import json
from pathlib import Path

from planner.job import Job
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

TINY = {"kind": "gpt", "layers": 1, "width": 32, "heads": 2, "context": 24}
TWO_BLOCKS = {"layers": 2}
"""where FSDP gathers a block's weights, or reduces its gradients, while another one computes"""


def make_job(texts, *, global_batch=13, max_micro=3, steps=6, **sections):
    """A job small enough for a test; `sections` are merged into its sections."""
    job = {
        "name": "test",
        "model": dict(TINY),
        "data": {"kind": "jsonl", "path": texts},
        "batch": {"global": global_batch, "max_micro": max_micro},
        "train": {"steps": steps, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "workers": {"gpus": 0},
        "checkpoint": {"every": 1000},
    }
    for name, section in sections.items():
        job[name] = {**job.get(name, {}), **section}
    return Job.model_validate(job)


def run_job(rank, job, url, stop_at=None, accept=()):
    """One generation; the last rank asks to stop before step `stop_at`."""
    import torch

    asked = []

    def should_stop(_step):
        asked.append(None)
        return stop_at is not None and rank == torch.distributed.get_world_size() - 1 and len(asked) > stop_at

    launch = Launch(job=job, url=url, accept=frozenset(accept))
    return train(launch, cpu_device, Hooks(should_stop=should_stop))


def run_job_in_own_folder(rank, job, url):
    """What a local path on several hosts looks like."""
    return run_job(rank, job, f"{url}/{rank}")


def records(url, kind="step"):
    """The records of one kind over all segments, in the order of generations."""
    lines = [line for file in sorted(Path(url, "ledger").iterdir()) for line in file.read_text().splitlines()]
    found = [json.loads(line)["record"] for line in lines]
    return [record for record in found if record["kind"] == kind]


def newest_commit(url):
    """The folder of the newest commit's tensors."""
    return max(Path(url, "checkpoints").iterdir())
