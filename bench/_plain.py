"""Training as a user's run trains. `planner verify` observes each tensor of a step, and waits for the GPU each time."""

import contextlib
import json
from pathlib import Path
from typing import Any

from planner.train.setup import Launch


class _EnoughError(Exception):
    pass


def train_plainly(rank: int, launch: Launch, num_steps: int, device_name: str) -> None:
    """Run in every worker: train until the ledger has so many steps. The job must have one more.

    Then the run is broken off. A stop would commit the last step, which is gigabytes that nobody reads.
    """
    import torch

    from planner.train.generation import train
    from planner.train.hooks import Hooks

    def should_stop(step: int) -> bool:
        # It is asked before the step that is done gets its record.
        if step > num_steps:
            raise _EnoughError
        return False

    device = torch.device(device_name, rank if device_name == "cuda" else None)
    with contextlib.suppress(_EnoughError):
        train(launch, lambda: device, Hooks(should_stop=should_stop))


def records_of(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a run's ledger, also of steps that no commit has."""
    lines = [line for file in sorted((run / "ledger").iterdir()) for line in file.read_text().splitlines()]
    return [record for record in (json.loads(line)["record"] for line in lines) if record["kind"] == kind]
