"""A loop whose step takes as long as its workers' shares are large, however few cores they share.

A sample costs a fixed time, slept and not computed, as it would cost a GPU of each worker's own: so that twice the
workers are nearly twice as fast on a machine with two cores, and policies can be compared there.
"""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.own import Run

SAMPLE_S = 0.004


class Points:
    """Row `i` is the same whenever it is asked for."""

    fingerprint = "paced points"

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        time.sleep(SAMPLE_S)
        return torch.randn(8, generator=torch.Generator().manual_seed(i)) + i % 3, i % 3


def dataset() -> Points:
    """What to train on."""
    return Points()


def train(run: Run) -> None:
    """As in jobs/own_loop.py."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    run.shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            points, kinds = (part.to(run.device) for part in batch)
            step.backward(functional.cross_entropy(model(points), kinds, reduction="sum"))
