"""How well the step model predicts world sizes that it has not seen: fitted on W = 1, 2, predicted for 3 and 4.

    python bench/step_time.py [--repeats 3] [--steps 12]     up to 4 processes on this machine (five minutes)

Each worker has half a core, and then 0.4 of one: four workers on two cores shall not take time from each other, and
four halves leave nothing for the kernel and the bench itself. Real steps of the gpt
model, through planner's whole loop, write a ledger. `planner fit` reads it after W = 1 and 2, and its rates predict
W = 3 and 4, which the same run then measures. Nothing else should run on the machine. To try it on a busy one, give
each worker less: `--only compute --repeats 1 --steps 7 --share 0.1` (two minutes, not written).

predicted_s   of the rates, the median over the repeats
measured_s    the median over the repeats of the ledger's median step
error         predicted over measured, minus 1, of these medians. worst_error: the one of a repeat that is farthest off
spread        of the measured medians over the repeats: (largest - smallest) / median
terms         of the first repeat's rates, in seconds at W = 2: compute, rounds, fixed, gather, reduce
"""

import argparse
import os
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from _half_cores import limited
from _results import write

from planner.job import Job
from planner.plan import make_plan
from planner.plan.rates import Rates
from planner.rehearsal.local_workers import LocalWorkers
from planner.runner.fit_run import fit_run

_FITTED, _PREDICTED = (1, 2), (3, 4)
_CASES: dict[str, dict[str, Any]] = {
    "compute": {"layers": 2, "width": 192, "context": 96, "global": 48, "max_micro": 16},
    "uneven": {"layers": 2, "width": 192, "context": 96, "global": 37, "max_micro": 10},
    "bytes": {"layers": 2, "width": 448, "context": 16, "global": 36, "max_micro": 6},
}


def job_for(case: dict[str, Any], data: Path, steps: int) -> Job:
    """A job of so many steps, which commits at its end alone."""
    return Job.model_validate(
        {
            "name": "step-time",
            "model": {"kind": "gpt", "heads": 4, **{key: case[key] for key in ("layers", "width", "context")}},
            "data": {"kind": "text", "path": str(data)},
            "batch": {"global": case["global"], "max_micro": case["max_micro"]},
            "train": {"steps": steps, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000, "memory": "off"},
        }
    )


def pid(rank: int) -> int:
    """Run in every worker."""
    del rank
    return os.getpid()


def train_on(rank: int, job: Job, url: str) -> None:
    """Run in every worker: one generation, from the newest commit to the job's last step."""
    del rank
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    train(Launch(job=job, url=url), cpu_device, Hooks())


def measure(workers: LocalWorkers, case: dict[str, Any], folder: Path, steps: int) -> tuple[Rates, dict[int, float]]:
    """Train at W = 1 to 4. Returns the rates after W = 2, and the median seconds of a step at each size."""
    data, url = folder / "corpus", str(folder / "run")
    data.write_bytes(np.random.default_rng(0).integers(1, 128, 2**18, dtype=np.uint8).tobytes())
    rates = None
    for number, size in enumerate((*_FITTED, *_PREDICTED), start=1):
        workers.run(train_on, size, job_for(case, data, number * steps), url)
        if size == _FITTED[-1]:
            rates = fit_run(url).rates
    assert rates is not None
    return rates, {each.world_size: each.seconds for each in fit_run(url).times.times}


def rows_of(name: str, case: dict[str, Any], found: list[tuple[Rates, dict[int, float]]], limit: str) -> Any:
    """A row per world size."""
    first = found[0][0]
    terms = {key: round(s, 4) for key, s in asdict(first.model.parts(make_plan(first.sizes, 2))).items()}
    for size in (*_FITTED, *_PREDICTED):
        plan = make_plan(first.sizes, size)
        measured = [times[size] for _, times in found]
        # Of the model itself, also where the size was measured.
        said = [rates.model.seconds_per_step(plan) for rates, _ in found]
        if size in _PREDICTED:
            said = [rates.speeds(rates.sizes).seconds_per_step(plan) for rates, _ in found]
        errors = [predicted / real - 1 for predicted, real in zip(said, measured, strict=True)]
        yield {
            "configuration": name,
            **case,
            "workers": size,
            "is_fitted": size in _FITTED,
            "predicted_s": round(statistics.median(said), 4),
            "measured_s": round(statistics.median(measured), 4),
            "error": round(statistics.median(said) / statistics.median(measured) - 1, 4),
            "worst_error": round(max(errors, key=abs), 4),
            "spread": round((max(measured) - min(measured)) / statistics.median(measured), 4),
            "repeats": len(found),
            "terms": terms,
            "limit": limit,
        }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="at each world size")
    parser.add_argument("--share", type=float, nargs="+", default=[0.5, 0.4], help="of a core, for each worker")
    parser.add_argument("--only", choices=list(_CASES), help="one configuration, not written")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    cases = {name: case for name, case in _CASES.items() if options.only in (None, name)}
    with LocalWorkers(_PREDICTED[-1]) as workers:
        pids = workers.run(pid, _PREDICTED[-1])
        # Importing torch and the first steps of a process are not limited.
        with tempfile.TemporaryDirectory() as folder:
            measure(workers, next(iter(cases.values())), Path(folder), 2)
        for share in options.share:
            with limited(pids, share) as how:
                for name, case in cases.items():
                    found = []
                    for _ in range(options.repeats):
                        with tempfile.TemporaryDirectory() as folder:
                            found.append(measure(workers, case, Path(folder), options.steps))
                    rows += rows_of(name, case, found, f"{share} of a core each, {how}")
    if options.only:
        print(*rows, sep="\n")  # a trial
    else:
        write("step_time", rows)


if __name__ == "__main__":
    main()
