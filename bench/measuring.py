"""What measuring tokens, memory and times costs beside a step of 300 ms.

    python bench/measuring.py        4 processes on this machine (a minute)

Each "step" of 4 rounds sleeps for 300 ms, as a CPU does while a GPU computes. In between are the calls of
`planner.train.meter`. Only the processor time of the training thread in them counts, because 4 processes share this
machine. A step sets 14 boundaries, counts the tokens of 4 micro-batches of 8 x 1,024 tokens and the time of 40
collectives, and each third step is summed over the workers and recorded. The figure is the median over blocks of 20
steps of the mean of a step, on rank 0, in milliseconds.
"""

import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from _results import write

from planner.rehearsal.local_workers import LocalWorkers

_WORKERS, _STEP_S, _ROUNDS, _COLLECTIVES, _BLOCK, _BLOCKS = 4, 0.3, 4, 40, 20, 5


def blocks(rank: int, folder: str) -> list[list[float]]:
    """Run in every worker. Returns the seconds that measuring took in each step of each block."""
    import numpy as np
    import torch.distributed as dist

    from planner.data.samples import Text
    from planner.store.records import StepRecord
    from planner.store.storage import Storage
    from planner.train.batches import LoadedStep
    from planner.train.collectives import blocked
    from planner.train.flops import PassFlops, StepFlops
    from planner.train.meter import Meter
    from planner.train.sample_batches import batch_of
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    storage = Storage(folder)
    meter = Meter(world, StepFlops(samples=PassFlops(per_token=1)), 1e12)
    batch = batch_of(range(8), [Text.of(np.zeros(1025, dtype=np.int32))] * 8)
    record = StepRecord(
        step=0, cursor=64, samples=64, tokens=6144, checksum="0" * 16, loss=1.0, grad_norm=1.0, lr=1e-3, seconds=0.3
    )

    def step(number: int) -> float:
        """The seconds of the training thread that measuring takes."""
        spent_s, began_s = 0.0, time.thread_time()
        meter.begin_step(LoadedStep(batches=[batch] * _ROUNDS))
        for _ in range(_ROUNDS):
            spent_s += time.thread_time() - began_s
            time.sleep(_STEP_S / _ROUNDS)
            began_s = time.thread_time()
            meter.watch.lap("forward")
            meter.watch.lap("backward")
        for _ in range(_COLLECTIVES):
            with blocked:
                pass
        meter.watch.lap("backward")
        meter.watch.lap("data")
        meter.watch.skip()
        meter.watch.lap("update")
        for found in meter.end_step(record, is_due=number % 3 == 0, is_last=False):
            if rank == 0:
                storage.append("ledger", found.model_dump_json().encode())
        return spent_s + time.thread_time() - began_s

    def block() -> list[float]:
        # Workers begin together, so that none waits for the sums of another.
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        return [step(number) for number in range(_BLOCK)]

    return [block() for _ in range(_BLOCKS)]


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as folder, LocalWorkers(_WORKERS) as workers:
        measured = workers.run(blocks, _WORKERS, str(Path(folder)))[0]
    milliseconds = statistics.median(statistics.mean(block) for block in measured) * 1000
    row = {
        "workers": _WORKERS,
        "step_ms": _STEP_S * 1000,
        "measuring_ms": round(milliseconds, 3),
        "median_step_ms": round(statistics.median(each for block in measured for each in block) * 1000, 3),
        "percent_of_step": round(milliseconds / (_STEP_S * 10), 3),
        "allowed_percent": 0.1,
    }
    write("measuring", [row])


if __name__ == "__main__":
    main()
