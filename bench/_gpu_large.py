"""Steps of a large model on one GPU, and what a commit in the background costs them. A piece of `bench/gpu.py`.

    python bench/_gpu_large.py --size 1b      0.8 B parameters, three commits
    python bench/_gpu_large.py --size 3b      3.2 B, selective checkpointing, no commits (the disk is small)

A step that begins a commit takes longer by the copy into host memory.

step_s       a step that begins no commit (median), and their range
mfu          6 FLOPs per parameter and token over the GPU's peak. null where the peak is not known
peak_gb      most memory of the GPU that torch's tensors had
stall_s      each step that begins a commit, less step_s. The first copies into fresh memory. A later one also waits
             for the commit before it, if that took longer than the steps between them
write_s      each commit that ended, from its begin until it was durable, in `store`
paused_s     for how long each of them kept the training thread, as the ledger has it
state_gb     weights and optimizer state, which are copied
copies       GB/s between this GPU and host memory, as `planner probe` measures them. Why not, where it did not
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _plain import records_of
from _results import hand_over
from step import LARGE, job_for, mfu, our_steps

from planner.job import Job
from planner.probe.devices import copies
from planner.rehearsal.local_workers import LocalWorkers

# A commit of 9.7 GB should be written before the next one begins: 25 steps take about ten seconds on an H100.
_EVERY, _COMMITS, _STEPS_WITHOUT = 25, 3, 8
_NEVER = 1_000_000
# Where there is room for all commits, files are in memory: the figure is how long training stops, not a disk's speed.
_IN_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 48 * 10**9


def store() -> Path | None:
    """The folder for the run's folder. None is the usual one for temporary files."""
    is_roomy = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ROOM_BYTES
    return _IN_MEMORY if is_roomy else None


def copy_rates(device: str) -> dict[str, float] | str:
    """GB/s by what is copied, or why there are none."""
    found = copies(is_expected=device == "cuda")
    rates = {what: round(statistics.median(each.gb_per_s for each in moves), 2) for what, moves in found.moves.items()}
    return rates or found.missing


def step_times(rank: int, job: Job, url: str, device_name: str, num_steps: int) -> tuple[list[float], float]:
    """Run in the worker. Seconds of each step, and the most memory of the GPU in GB."""
    import torch

    device = torch.device(device_name, rank if device_name == "cuda" else None)
    is_gpu = device.type == "cuda"
    steps, found = our_steps(job, url, device), []
    for _ in range(num_steps):
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
    every, folder = 3 if options.toy else _EVERY, store()
    # Once more than a commit takes, so that the last one can end.
    num_steps = every * (_COMMITS + 1) if commits else _STEPS_WITHOUT
    with tempfile.TemporaryDirectory(dir=folder) as name, LocalWorkers(1, backend) as workers:
        job = job_for(options.device, Path(name), toy=options.toy, size=options.size)
        interval = f"{every if commits else _NEVER} steps"
        job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": interval})})
        run = Path(name) / "run"
        ((seconds, peak_gb),) = workers.run(step_times, 1, job, str(run), options.device, num_steps)
        records = records_of(run, "commit") if commits else []
    # A step is committed when the next one is asked for. The run's first steps are slow.
    begins = range(every, len(seconds), every) if commits else range(0)
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
        "write_s": [round(record["write_s"], 2) for record in records],
        "paused_s": [round(record["seconds"], 4) for record in records],
        "store": str(folder or tempfile.gettempdir()),
        "state_gb": round(12 * 12 * model.layers * model.width**2 / 1e9, 2),
        "copies": copy_rates(options.device),
    }
    hand_over(f"gpu-{'commit' if commits else 'large'}", [row])


if __name__ == "__main__":
    main()
