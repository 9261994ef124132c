"""What the workers of `resized_run` do beside their training: they wait at gates, rest, and tell what they see."""

import os
import time
from dataclasses import replace
from pathlib import Path

from held_writes import Gate, held_hooks

from planner.dispatch import mailbox

# Each step leaves the processor to those that start beside it.
_REST_S = 0.05
VARIABLES = (
    "MASTER_ADDR",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "ACCELERATE_TORCH_DEVICE",
)
STOPS = "no stops"
"""name of the gate that workers wait at when they have been told to stop"""


def told_hooks(folder, launch):
    """`held_hooks` with a gate at stops, too. `variables0of3` and so on have what torch programs read in a worker."""
    import torch.distributed as dist

    hooks, stops = held_hooks(folder, launch), Gate(folder, STOPS)
    told = [dist.get_backend(), *(os.environ[name] for name in VARIABLES)]
    (Path(folder) / f"variables{dist.get_rank()}of{dist.get_world_size()}").write_text(" ".join(told))

    def should_stop(step):
        time.sleep(_REST_S)
        if mailbox.stop_requested():
            stops.await_open()
        return hooks.should_stop(step)

    return replace(hooks, should_stop=should_stop)
