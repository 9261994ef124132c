"""Samples per second at W = 1..5 for a global batch of 32, beside the ideal and beside dropping to a divisor of it.

    python bench/uneven.py        up to 5 processes on this machine (a minute)

Two cores cannot compute for five workers at once, so a sample costs each worker 80 ms of sleep, forward and backward
together, as if it had a GPU of its own. The loop around it is the real one, FSDP's collectives included.

ideal             W times the samples per second of one worker
largest_divisor   what a launcher gets that wants G % W == 0: the largest such count of workers, the others idle
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from _results import write

from planner.job import Job, batch_sizes
from planner.plan import make_plan
from planner.rehearsal.local_workers import LocalWorkers

_MOST, _STEPS, _WARM_UP, _SAMPLE_S = 5, 10, 2, 0.08


def job_for(folder: Path) -> Job:
    """A model that computes nearly nothing."""
    (folder / "corpus").write_bytes(np.random.default_rng(0).integers(1, 128, 2**18, dtype=np.uint8).tobytes())
    return Job.model_validate(
        {
            "name": "uneven",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": str(folder / "corpus")},
            "batch": {"global": 32, "max_micro": 8},
            "train": {"steps": 1_000_000, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000},
        }
    )


def seconds_per_step(rank: int, job: Job, url: str) -> float:
    """Run in every worker. Returns the median seconds of a step of our loop."""
    del rank
    from planner.train.flops import StepFlops
    from planner.train.generation import make_batch_of, make_state
    from planner.train.hooks import Hooks
    from planner.train.lifecycle import begin, looping
    from planner.train.objectives import make_objective
    from planner.train.reference.frozen import UniformReference
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    generation = begin(Launch(job=job, url=url), cpu_device, Hooks())
    state, objective = make_state(generation), make_objective(job.objective, UniformReference())

    def steps() -> Iterator[float]:
        with looping(generation, state, lambda _note: (objective, StepFlops()), make_batch_of(job)) as loop:
            for step in loop.steps():
                for batch in step.micro_batches():
                    part = objective.loss(state.model, batch, step.totals)
                    time.sleep(_SAMPLE_S * len(batch.rows))
                    step.backward_part(part)
                yield time.perf_counter()

    taken = steps()
    moments = [next(taken) for _ in range(_WARM_UP + _STEPS)][_WARM_UP - 1 :]
    taken.close()  # type: ignore[attr-defined]  # a generator
    return statistics.median(later - earlier for earlier, later in pairwise(moments))


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as name, LocalWorkers(_MOST) as workers:
        job = job_for(Path(name))
        step_s = {
            size: max(workers.run(seconds_per_step, size, job, str(Path(name) / str(size))))
            for size in range(1, _MOST + 1)
        }
    samples = job.batch.global_batch
    rows: list[dict[str, object]] = []
    for size, seconds in step_s.items():
        divisor = max(w for w in range(1, size + 1) if samples % w == 0)
        plan = make_plan(batch_sizes(job), size)
        rows.append(
            {
                "workers": size,
                "samples_per_s": round(samples / seconds, 1),
                "of_ideal": round(step_s[1] / seconds / size, 3),
                "planned_efficiency": round(plan.efficiency, 3),
                "largest_divisor": divisor,
                "divisor_samples_per_s": round(samples / step_s[divisor], 1),
                "times_divisor": round(step_s[divisor] / seconds, 2),
            }
        )
    write("uneven", rows)


if __name__ == "__main__":
    main()
