"""The job of the chaos runs: a small network whose data set tells a witness of every read.

The witness is the folder `witness` beside this file, if there is one: every process that reads writes a file of its
own there, apart from everything that planner writes. A copy of this file without that folder is silent. The file
`witness/pause_s` says how long a read takes, so that a step takes as long as its workers' shares are large.
"""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.own import Run

WITNESS = Path(__file__).parent / "witness"
_PAUSE = WITNESS / "pause_s"
PAUSE_S = float(_PAUSE.read_text()) if _PAUSE.exists() else 0.0


class Witness:
    """One line for every read, and one for every generation that this process is a worker of."""

    def __init__(self) -> None:
        self._file = -1

    def write(self, line: str) -> None:
        """Written at once and in one piece: a process that is killed has no time for it."""
        if not WITNESS.is_dir():
            return
        if self._file < 0:
            path = WITNESS / f"{os.getpid()}-{time.time_ns()}.log"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, f"{line}\n".encode())


WITNESSED = Witness()


class Points:
    """Row `i` is the same whenever it is asked for."""

    fingerprint = "chaos: points of 2026"

    def __len__(self) -> int:
        return 509  # prime: no epoch ends with a batch

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        WITNESSED.write(f"read {i}")
        time.sleep(PAUSE_S)
        return torch.randn(8, generator=torch.Generator().manual_seed(i)) + i % 3, i % 3


def dataset() -> Points:
    """What to train on."""
    return Points()


def train(run: Run) -> None:
    """As in jobs/own_loop.py."""
    WITNESSED.write(f"generation {run._generation.start.generation} rank {run.rank} of {run.world_size}")
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    run.shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            points, kinds = (part.to(run.device) for part in batch)
            step.backward(functional.cross_entropy(model(points), kinds, reduction="sum"))
