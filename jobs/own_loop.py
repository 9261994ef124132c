"""A training loop of your own under planner: a small convolutional network that tells shapes apart.

`planner run jobs/own_loop.yaml` calls `dataset()` and, on every worker and again after every resize, `train(run)`.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.own import Run

SIZE, KINDS = 16, 4


class Shapes:
    """A map: image `i` is the same whenever it is asked for. Discs, squares, crosses and rings in noise."""

    def __len__(self) -> int:
        return 6000

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        dice = torch.Generator().manual_seed(i)
        x0, y0, radius = (
            torch.rand(3, generator=dice) * torch.tensor([5.0, 5.0, 2.0]) + torch.tensor([5.5, 5.5, 3.0])
        ).tolist()
        y, x = torch.meshgrid(torch.arange(SIZE) - y0, torch.arange(SIZE) - x0, indexing="ij")
        distance = (x.square() + y.square()).sqrt()
        kind = i % KINDS
        shape = [
            distance < radius,
            torch.maximum(x.abs(), y.abs()) < radius * 0.8,
            torch.minimum(x.abs(), y.abs()) < 1.2,
            (distance - radius).abs() < 1.0,
        ][kind]
        return (shape + 0.7 * torch.randn(SIZE, SIZE, generator=dice)).unsqueeze(0), kind


def dataset() -> Shapes:
    """What to train on."""
    return Shapes()


class Net(nn.Module):
    """Three convolutions. GroupNorm, not BatchNorm: statistics of a micro-batch would depend on the split."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 16, 32, 64]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.head = nn.Linear(64, KINDS)

    def forward(self, images: Tensor) -> Tensor:
        """`(m, 1, 16, 16)` -> `(m, 4)`."""
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean(dim=(2, 3)))


def train(run: Run) -> None:
    """The loop. What it needs from planner: `run.shard`, `run.steps`, and a `step.backward` for each micro-batch."""
    model = Net()
    run.shard(model, units=model.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_sum(batch: tuple[Tensor, Tensor]) -> Tensor:
        images, kinds = (part.to(run.device) for part in batch)
        return functional.cross_entropy(model(images), kinds, reduction="sum")

    for step in run.steps(model, optimizer, evaluate=loss_sum):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 + math.cos(math.pi * step.number / run.total_steps)) / 2
        for batch in step.micro_batches():
            step.backward(loss_sum(batch))
