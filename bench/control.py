"""What the control message, the stop agreement and the ledger cost beside a step of 300 ms.

    python bench/control.py        4 processes on this machine (a minute)

Each "step" sleeps for 300 ms, as a CPU does while a GPU computes, the last 10 of them as the optimizer's: as in the
real loop, the message's sum over the workers is under way meanwhile. Blocks of 20 steps with and without the message
and the step's ledger record take turns. The times are rank 0's, in seconds.
"""

import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from _results import write

from planner.rehearsal.local_workers import LocalWorkers

_WORKERS, _STEP_S, _OPTIMIZER_S, _BLOCK, _BLOCKS = 4, 0.3, 0.01, 20, 4


def blocks(rank: int, folder: str) -> list[tuple[float, float]]:
    """Run in every worker. Returns the seconds of a block without and of one with, several times."""
    import torch.distributed as dist

    from planner.store.records import StepRecord
    from planner.store.storage import Storage
    from planner.train import control
    from planner.train.control import Tally
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    storage = Storage(folder)
    record = StepRecord(
        step=0, cursor=64, samples=64, tokens=6144, checksum="0" * 16, loss=1.0, grad_norm=1.0, lr=1e-3, seconds=0.3
    )

    def block(*, is_controlled: bool) -> float:
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        began_s = time.perf_counter()
        for _ in range(_BLOCK):
            time.sleep(_STEP_S - _OPTIMIZER_S)
            if is_controlled:
                tally = Tally(
                    denominators=(6144,), samples=64, loss=1.0, check_sum=1, stop=0, failed=0, commit=0, report=0
                )
                pending = control.start(world, tally)
            time.sleep(_OPTIMIZER_S)
            if is_controlled:
                pending.wait()
                if rank == 0:
                    storage.append("ledger", record.model_dump_json().encode())
        return time.perf_counter() - began_s

    return [(block(is_controlled=False), block(is_controlled=True)) for _ in range(_BLOCKS)]


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as folder, LocalWorkers(_WORKERS) as workers:
        measured = workers.run(blocks, _WORKERS, str(Path(folder)))[0]
    extra = [(with_it - without) / _BLOCK for without, with_it in measured]
    milliseconds = statistics.median(extra) * 1000
    row = {
        "workers": _WORKERS,
        "step_ms": _STEP_S * 1000,
        "control_ms": round(milliseconds, 3),
        "percent_of_step": round(milliseconds / (_STEP_S * 10), 3),
        "allowed_percent": 1.0,
    }
    write("control", [row])


if __name__ == "__main__":
    main()
