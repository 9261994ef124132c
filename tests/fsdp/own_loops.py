"""A small training loop of the user's own, and its job."""

from planner.job import Job

HEAD = """
import torch
from torch import nn

class Points:
    def __len__(self):
        return 50
    def __getitem__(self, i):
        x = torch.randn(3, generator=torch.Generator().manual_seed(i))
        return {"x": x, "y": x.sum(), "weight": i % 3}

def dataset():
    return Points()

def made(run, **options):
    model = run.shard(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

def errors(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]).square()
"""
"""What a loop's code begins with: its data, its model and its loss. A test adds `train`."""


def own_job(file, **sections):
    """The job whose loop is in `file`. `sections` are merged into its sections."""
    job = {
        "name": "own",
        "model": {"kind": "own"},
        "data": {"kind": "own", "path": str(file)},
        "objective": "own",
        "batch": {"global": 7, "max_micro": 2},
        "train": {"steps": 6, "optimizer": {"kind": "own"}},
        "workers": {"gpus": 0},
    }
    for name, section in sections.items():
        job[name] = {**job.get(name, {}), **section}
    return Job.model_validate(job)
