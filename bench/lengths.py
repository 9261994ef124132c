"""Micro-batches without padding, balanced by the lengths of a step's samples, beside padded ones: samples per second.

    python bench/lengths.py [--lengths FILE.csv] [--pairs 8]
    python bench/lengths.py --only dpo       these rows alone. Others stay as they are
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

With --trl, rows of `trl`: the same SFT of a small Llama on one worker by TRL with padding, by TRL with padding_free, by
planner with padding and by length. One process after another, twice. `samples_per_s` has the median of the steps but
the first two, of both runs, and `range` the medians of the runs.
"""

import argparse
import csv
import importlib.util
import itertools
import json
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _plain import records_of, train_plainly
from _results import hand_over, kept
from same_as_trl import environment_with_trl, versions
from step import interval

from planner.job import Job
from planner.order.order import Order
from planner.rehearsal.local_workers import LocalWorkers
from planner.train.setup import Launch

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
    # Random letters: a model learns "cccc" within ten steps. Then gradients are subnormal, and now and then a step of
    # either side takes the CPU ten times as long.
    rows, dice = [], random.Random(0)
    for number, (prompt, chosen, rejected) in enumerate(lengths):
        begin, *said = ("".join(dice.choices(string.ascii_lowercase, k=each)) for each in (prompt, chosen, rejected))
        begin, texts = f"{number} {begin}", dict(zip(("chosen", "rejected"), said, strict=True))
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
            "train": {"steps": 100_000, "optimizer": {"kind": "adamw", "lr": 1e-5}},
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
    reference = make_reference(job, generation.setup.folders, generation.world, generation.auto_attention)
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


_TRL_STEPS, _TRL_SLOW, _TRL_MICRO, _TRL_ACCUMULATION = 8, 2, 8, 2
_LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def write_llama(folder: Path) -> None:
    """A Llama with random weights, whose tokenizer has a token per byte."""
    sys.path.append(str(Path(__file__).parent.parent / "jobs"))
    from make_llama import make_tokenizer
    from transformers import AutoModelForCausalLM, LlamaConfig, set_seed

    tokenizer = make_tokenizer(["q"])  # nothing to merge
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    set_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(**_LLAMA, vocab_size=len(tokenizer), **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def trl_job(folder: Path, *, max_tokens: int | None) -> Job:
    """TRL's settings in planner's words."""
    return Job.model_validate(
        {
            "name": "trl",
            "model": {"kind": "hf", "path": str(folder / "llama"), "context": _CONTEXT, "attention": "sdpa"},
            "data": {"kind": "chat", "path": str(folder / "sft.jsonl"), "loss_on": "all"},
            "objective": {"kind": "sft"},
            "batch": {
                "global": _TRL_MICRO * _TRL_ACCUMULATION,
                "max_micro": _TRL_MICRO,
                **({"max_tokens": max_tokens} if max_tokens else {}),
            },
            "train": {"steps": _TRL_STEPS + 1, "optimizer": {"kind": "adamw", "lr": 1e-4}, "clip_norm": 1.0},
            "workers": {"gpus": 0, "max": 1},
            "checkpoint": {"every": 1_000_000},
        }
    )


def seconds_of_planner(folder: Path, *, max_tokens: int | None) -> list[float]:
    """Of the steps of a run."""
    with tempfile.TemporaryDirectory(dir=folder) as run, LocalWorkers(1, "gloo") as workers:
        launch = Launch(job=trl_job(folder, max_tokens=max_tokens), url=run)
        workers.run(train_plainly, 1, launch, _TRL_STEPS, "cpu")
        return [record["seconds"] for record in records_of(Path(run), "step")]


def seconds_of_trl(folder: Path, python: str, more: dict[str, object]) -> list[float]:
    """Of TRL's steps, on the same rows in the same order."""
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    used = Order(num_rows=len(rows), num_held_out=0, seed=0).rows(0, _TRL_STEPS * _TRL_MICRO * _TRL_ACCUMULATION)
    said = [{key: rows[i][key] for key in ("prompt", "completion")} for i in used]
    (folder / "there.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    settings = {
        "method": "sft",
        "device": "cpu",
        "data": str(folder / "there.jsonl"),
        "folder": str(folder / "trl"),
        "out": str(folder / "there.json"),
        "model": str(folder / "llama"),
        "micro": _TRL_MICRO,
        "accumulation": _TRL_ACCUMULATION,
        "steps": _TRL_STEPS,
        "lr": 1e-4,
        "clip_norm": 1.0,
        "context": None,
        "more": {"completion_only_loss": False, **more},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [python, str(Path(__file__).parent / "_trl_side.py"), str(folder / "settings.json")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: list[float] = json.loads((folder / "there.json").read_text())["seconds"]
    return found


def beside_trl(lengths: list[tuple[int, int, int]]) -> dict[str, object]:
    """The row of TRL and planner on one worker."""
    python = sys.executable if importlib.util.find_spec("trl") else environment_with_trl()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_llama(folder / "llama")
        write_rows(folder, "sft", lengths)
        longest = 16 * max(prompt + chosen for prompt, chosen, _ in lengths)
        ways: dict[str, Callable[[], list[float]]] = {
            "TRL": lambda: seconds_of_trl(folder, python, {}),
            "TRL, padding_free": lambda: seconds_of_trl(folder, python, {"padding_free": True}),
            "planner": lambda: seconds_of_planner(folder, max_tokens=None),
            "planner, by length": lambda: seconds_of_planner(folder, max_tokens=longest),
        }
        runs: dict[str, list[list[float]]] = {way: [] for way in ways}
        for _ in range(2):
            for way, measure_way in ways.items():
                runs[way].append(measure_way()[_TRL_SLOW:])
    size = _TRL_MICRO * _TRL_ACCUMULATION
    medians = {way: [size / statistics.median(run) for run in found] for way, found in runs.items()}
    return {
        "objective": "sft",
        "workers": 1,
        "trl": versions(python),
        "samples_per_s": {
            way: round(size / statistics.median(itertools.chain(*found)), 2) for way, found in runs.items()
        },
        "range": {way: [round(min(found), 2), round(max(found), 2)] for way, found in medians.items()},
        "steps": 2 * (_TRL_STEPS - _TRL_SLOW),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", help="a CSV file of lengths in bytes")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=("sft", "dpo"), default=("sft", "dpo"), metavar="OBJECTIVE")
    parser.add_argument("--toy", action="store_true", help="a tiny model and two pairs")
    parser.add_argument("--trl", action="store_true", help="TRL beside planner, too")
    options = parser.parse_args()
    if options.toy:
        options.pairs = 2
    lengths = lengths_of(options.lengths)
    # Rows that are not measured now stay. TRL's row has no ratio.
    rows = [row for row in kept("lengths") if row["objective"] not in options.only or "ratio" not in row]
    for objective in options.only:
        for workers in (2, 4):
            rows.append(measure(objective, workers, lengths, options))
            hand_over("lengths", rows)
    if options.trl:
        rows = [*(row for row in rows if "ratio" in row), beside_trl(lengths)]
        hand_over("lengths", rows)


if __name__ == "__main__":
    main()
