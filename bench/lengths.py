"""Micro-batches without padding, balanced by the lengths of a step's samples, beside padded ones: samples per second.

    python bench/lengths.py [--lengths FILE.csv] [--pairs 8]
    python bench/lengths.py --trl            TRL's padded and padding-free SFT beside ours, too (it makes .venv-trl)

FILE has the columns prompt_bytes, chosen_bytes and rejected_bytes: a token per four bytes. Without it, lengths are
lognormal. Both sides train the same model on the same samples with the same `max_micro`, in the same processes, one
step each in turn: A B, B A, ... `padded` is the layout of version 0.1.0: contiguous shares, each micro-batch padded to
its longest sequence. `by_length` has `batch.max_tokens`, as large as the largest padded micro-batch. Takes 15 minutes.

ratio           samples per second, by length over padded: median over the pairs, and its 95 % bootstrap interval
samples_per_s   of each side (median), and their range
peak_mib        most memory of a worker, each side in processes of its own (resident, torch included)
loss_difference largest relative difference of a step's loss. Samples of each step are compared by their checksums
padding         tokens that the padded side computes, over those of the samples
"""

import argparse
import csv
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _plain import records_of
from _results import hand_over
from step import interval

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers

_WARM_UP, _PEAK_STEPS, _ROWS = 2, 4, 2048
_GLOBAL, _MICRO, _CONTEXT = 32, 8, 1100
_SIDES = ("padded", "by_length")


def lengths_of(file: str | None) -> list[tuple[int, int, int]]:
    """Tokens of prompt, chosen and rejected completion."""
    if file:
        with Path(file).open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        names = ("prompt_bytes", "chosen_bytes", "rejected_bytes")
        return [tuple(max(1, int(row[name]) // 4) for name in names) for row in rows]  # type: ignore[misc]
    dice = random.Random(0)
    draws = (
        (dice.lognormvariate(4.5, 0.8), dice.lognormvariate(3.3, 1.0), dice.lognormvariate(3.3, 1.0))
        for _ in range(_ROWS)
    )
    return [tuple(min(max(1, round(length)), 500) for length in draw) for draw in draws]  # type: ignore[misc]


def write_rows(folder: Path, objective: str, lengths: list[tuple[int, int, int]]) -> Path:
    """A file of rows, a token per byte."""
    rows = []
    for number, (prompt, chosen, rejected) in enumerate(lengths):
        begin = f"{number} " + "p" * prompt
        texts = {"chosen": "c" * chosen, "rejected": "r" * rejected}
        rows.append(
            {"prompt": begin, "completion": texts["chosen"]} if objective == "sft" else {"prompt": begin, **texts}
        )
    path = folder / f"{objective}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job_for(objective: str, data: Path, *, max_tokens: int | None, width: int, layers: int) -> Job:
    """The job of a side."""
    return Job.model_validate(
        {
            "name": objective,
            "model": {"kind": "gpt", "layers": layers, "width": width, "heads": width // 32, "context": _CONTEXT},
            "data": {"kind": "chat", "path": str(data), "loss_on": "all"}
            if objective == "sft"
            else {"kind": "pairs", "path": str(data)},
            "objective": {"kind": objective},
            "batch": {"global": _GLOBAL, "max_micro": _MICRO, **({"max_tokens": max_tokens} if max_tokens else {})},
            "train": {"steps": 100_000, "optimizer": {"kind": "adamw", "lr": 1e-4}},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000},
        }
    )


def steps_of(job: Job, url: str) -> Iterator[None]:
    """The loop of a run, one step for each `next`."""
    import torch

    from planner.train.flops import StepFlops
    from planner.train.generation import make_batch_of, make_state
    from planner.train.hooks import Hooks
    from planner.train.lifecycle import begin, looping
    from planner.train.objectives import make_objective
    from planner.train.optimizer_step import accumulate
    from planner.train.reference.frozen import make_reference
    from planner.train.setup import Launch

    generation = begin(Launch(job=job, url=url), lambda: torch.device("cpu"), Hooks())
    state = make_state(generation)
    reference = make_reference(job, generation.setup.folders, generation.world)
    given = make_objective(job.objective, reference), StepFlops()
    with looping(generation, state, lambda _note: given, make_batch_of(job)) as loop:
        for step in loop.steps():
            accumulate(state.model, given[0], step)
            yield


def timed(side: Iterator[None]) -> float:
    """Seconds of a step, of all workers together."""
    import torch.distributed as dist

    dist.barrier()
    began_s = time.perf_counter()
    next(side)
    dist.barrier()
    return time.perf_counter() - began_s


def pairs(_rank: int, jobs: dict[str, Job], folder: str, num_pairs: int) -> list[tuple[float, float]]:
    """Run in every worker: seconds of a padded step and of one by length, in turn."""
    sides = [steps_of(jobs[name], f"{folder}/{name}") for name in _SIDES]
    for side in sides:
        for _ in range(_WARM_UP):
            timed(side)
    found = []
    for pair in range(num_pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        times = {which: timed(sides[which]) for which in order}
        found.append((times[0], times[1]))
    return found


def peak_of(_rank: int, job: Job, url: str) -> int:
    """Run in every worker: the most bytes that the process had."""
    import torch

    from planner.train.meter import peak_memory_bytes

    side = steps_of(job, url)
    for _ in range(_PEAK_STEPS):
        next(side)
    return peak_memory_bytes(torch.device("cpu"))


def measure(
    objective: str, workers: int, lengths: list[tuple[int, int, int]], options: argparse.Namespace
) -> dict[str, Any]:
    """One row."""
    from planner.runner.length_costs import length_costs

    width, layers = (64, 2) if options.toy else (256, 4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_rows(folder, objective, lengths)
        padded = job_for(objective, data, max_tokens=None, width=width, layers=layers)
        # As `planner plan --lengths` advises: no micro-batch is larger than the largest padded one.
        found = length_costs(padded, [workers])
        by_length = job_for(objective, data, max_tokens=found.largest_padded, width=width, layers=layers)
        jobs = dict(zip(_SIDES, (padded, by_length), strict=True))
        with LocalWorkers(workers, "gloo") as processes:
            seconds = processes.run(pairs, workers, jobs, name, options.pairs)[0]
        peaks = {}
        for side, job in jobs.items():
            with LocalWorkers(workers, "gloo") as processes:
                peaks[side] = max(processes.run(peak_of, workers, job, f"{name}/peak-{side}"))
        steps = {side: records_of(folder / side, "step") for side in _SIDES}
    differences = []
    for one, other in zip(*steps.values(), strict=False):
        assert (one["checksum"], one["tokens"], one["samples"]) == (
            other["checksum"],
            other["tokens"],
            other["samples"],
        )
        differences.append(abs(one["loss"] - other["loss"]) / abs(one["loss"]))
    ratios = [padded_s / by_length_s for padded_s, by_length_s in seconds]
    low, high = interval(ratios)
    rates = {side: [_GLOBAL / pair[place] for pair in seconds] for place, side in enumerate(_SIDES)}
    return {
        "objective": objective,
        "workers": workers,
        "lengths": Path(options.lengths).name if options.lengths else "lognormal",
        "global_batch": _GLOBAL,
        "max_micro": _MICRO,
        "max_tokens": by_length.batch.max_tokens,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_95": [round(low, 3), round(high, 3)],
        "samples_per_s": {side: round(statistics.median(found), 2) for side, found in rates.items()},
        "range": {side: [round(min(found), 2), round(max(found), 2)] for side, found in rates.items()},
        "peak_mib": {side: round(peak / 2**20) for side, peak in peaks.items()},
        "loss_difference": float(f"{max(differences):.1e}"),
        "padding": round(_padding(found), 3),
        "pairs": options.pairs,
    }


def _padding(found: Any) -> float:
    (costs,) = found.costs
    return float(costs.padded.mean / costs.even)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", help="a CSV file of lengths in bytes")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--toy", action="store_true", help="a tiny model and two pairs")
    options = parser.parse_args()
    if options.toy:
        options.pairs = 2
    lengths = lengths_of(options.lengths)
    rows: list[dict[str, object]] = []
    for objective in ("sft", "dpo"):
        for workers in (2, 4):
            rows.append(measure(objective, workers, lengths, options))
            hand_over("lengths", rows)


if __name__ == "__main__":
    main()
