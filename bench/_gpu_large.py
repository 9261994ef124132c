"""Steps of a large model on one GPU, and what a commit in the background costs them. A piece of `bench/gpu.py`.

    python bench/_gpu_large.py --size 1b      0.8 B parameters, a commit every five steps
    python bench/_gpu_large.py --size 3b      3.2 B, selective checkpointing, no commits (the disk is small)

A step that begins a commit takes longer by the copy into host memory.

step_s       a step that begins no commit (median), and their range
mfu          6 FLOPs per parameter and token over the GPU's peak. null where the peak is not known
peak_gb      most memory of the GPU that torch's tensors had
stall_s      each step that begins a commit, less step_s. The first copies into fresh memory
state_gb     weights and optimizer state, which are copied
copies       GB/s between this GPU and host memory, as `planner probe` measures them
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _results import hand_over
from step import LARGE, job_for, mfu, our_steps

from planner.job import Job
from planner.probe.devices import copies
from planner.rehearsal.local_workers import LocalWorkers

_EVERY, _COMMITS = 5, 6
_NEVER = 1_000_000


def step_times(rank: int, job: Job, url: str, device_name: str) -> tuple[list[float], float]:
    """Run in the worker. Seconds of each step, and the most memory of the GPU in GB."""
    import torch

    device = torch.device(device_name, rank if device_name == "cuda" else None)
    is_gpu = device.type == "cuda"
    steps, found = our_steps(job, url, device), []
    for _ in range(_EVERY * _COMMITS + 2):
        began_s = time.perf_counter()
        next(steps)
        if is_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began_s)
    return found, torch.cuda.max_memory_allocated() / 1e9 if is_gpu else 0.0


def main() -> None:
    """Measure and hand over the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--size", choices=tuple(LARGE), default="1b")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    commits = options.size == "1b"
    with tempfile.TemporaryDirectory() as name, LocalWorkers(1, backend) as workers:
        job = job_for(options.device, Path(name), toy=options.toy, size=options.size)
        every = f"{_EVERY if commits else _NEVER} steps"
        job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": every})})
        ((seconds, peak_gb),) = workers.run(step_times, 1, job, str(Path(name) / "run"), options.device)
    # A step is committed when the next one is asked for. The run's first steps are slow.
    begins = range(_EVERY, len(seconds), _EVERY) if commits else range(0)
    quiet = [second for place, second in enumerate(seconds) if place > 1 and place not in begins]
    step_s = statistics.median(quiet)
    model: Any = job.model
    row = {
        "device": options.device,
        "size": options.size,
        "step_s": round(step_s, 4),
        "range_s": [round(min(quiet), 4), round(max(quiet), 4)],
        "tokens_per_s": round(job.batch.global_batch * model.context / step_s),
        "mfu": mfu(job, options.device, step_s),
        "peak_gb": round(peak_gb, 1),
        "stall_s": [round(seconds[place] - step_s, 4) for place in begins],
        "state_gb": round(12 * 12 * model.layers * model.width**2 / 1e9, 2),
        "copies": {
            what: round(statistics.median(move.gb_per_s for move in moves), 2) for what, moves in copies().moves.items()
        },
    }
    hand_over(f"gpu-{'commit' if commits else 'large'}", [row])


if __name__ == "__main__":
    main()
