"""What copies in memory cost, and what they save: over the steps between two copies, and where `auto` lies.

    python bench/copies.py [--repeats 5] [--intervals 1 2 5 10 20 auto]     half an hour
    python bench/copies.py --toy                                            a tiny model, one repeat, nothing is written

One run of a gpt of 42 M parameters on two workers, each with a keeper of its own node, in processes without Ray. For
each interval in turn, two processes train: after a warm-up, blocks of 20 steps without copies and with them take turns.
Then, at a random moment within the next interval, one worker and its node's keeper are killed. The next two processes
resume from what the other keeper has.

interval          steps between two copies (`checkpoint.memory`)
chosen            the interval that `auto` had chosen at the end
step_s            a step without copies (mean)
copy_s            for which training stood still for a copy (median), of the slower worker
copies_share      seconds of copying, as a part of the time of the blocks with copies
step_overhead     a step in the blocks with copies, over one in those without, less 1. It includes the keepers' work:
                  digests and the copy to the other node, on the same cores
steps_lost        steps done before the kill and done again after it (median), and their range
share_range, overhead_range   over the repeats

It exits with 1 if `auto` takes more than 2 % by seconds of copying.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _copies_worker import SECRET, Script, steps_until_killed
from _lines import lines
from _results import write

from planner.errors import TrainingFailed
from planner.job import GptModel, Job
from planner.job.model import gpt_shapes
from planner.keeper.process import KeeperProcess, started
from planner.plan.interval import COPY_SHARE
from planner.rehearsal.local_workers import LocalWorkers

_INTERVALS = ("1", "2", "5", "10", "20", "auto")
_BOUND_BYTES = 3 * 2**30
_LIMIT_S = 900.0
_WARM = ["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "planner.train.generation"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The size of the measurement."""

    layers: int = 6
    width: int = 760
    context: int = 64
    rounds: int = 2
    block_steps: int = 20

    def job(self, folder: Path, memory: str) -> Job:
        """Six samples of `context` bytes a step."""
        corpus = folder / "corpus"
        if not corpus.exists():
            corpus.write_bytes(np.random.default_rng(0).integers(1, 128, 2**20, dtype=np.uint8).tobytes())
        return Job.model_validate(
            {
                "name": "copies",
                "model": {
                    "kind": "gpt",
                    "layers": self.layers,
                    "width": self.width,
                    "heads": 4,
                    "context": self.context,
                },
                "data": {"kind": "text", "path": str(corpus)},
                "batch": {"global": 6, "max_micro": 6},
                "train": {"steps": 1_000_000, "optimizer": {"kind": "adamw", "lr": 1e-4}},
                "eval": {"samples": 0},
                "workers": {"gpus": 0},
                "checkpoint": {"every": 1_000_000, "memory": memory if memory == "auto" else int(memory)},
            }
        )


TOY = Setting(layers=1, width=32, context=8, rounds=1, block_steps=4)


class Nodes:
    """Two nodes with keepers. One dies after the other, and a new one takes its place."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._made = stack, 0
        self.names: list[str] = []
        self._keepers: list[KeeperProcess] = []
        self.fill()

    def fill(self) -> None:
        """New nodes until there are two."""
        while len(self.names) < 2:
            name = f"node-{self._made}"
            keeper = started(name, SECRET, _BOUND_BYTES)
            self._stack.callback(keeper.close)
            self.names.append(name)
            self._keepers.append(keeper)
            self._made += 1

    @property
    def addresses(self) -> tuple[Any, ...]:
        """Of the keepers that live."""
        return tuple(keeper.address for keeper in self._keepers)

    def kill_last(self) -> None:
        """The node of the last worker."""
        self.names.pop()
        self._keepers.pop().kill()


def generation(job: Job, folder: Path, nodes: Nodes, script: Script, after_steps: int, part: float) -> None:
    """Train until a kill: `after_steps` and a `part` of a step behind the script's last block.

    Raises:
        TimeoutError: it was not there in time.
    """
    log = Path(script.log)
    known = len(lines(log))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_WARM)
    failures: list[Exception] = []
    with LocalWorkers(2, context=context) as workers:

        def kill() -> None:
            deadline_s = time.monotonic() + _LIMIT_S
            while True:
                seen = lines(log, known)
                steps = [line for line in seen if line["kind"] == "step" and line["rank"] == 0]
                if sum(line["phase"] == "kill" for line in steps) > after_steps:
                    break
                if time.monotonic() > deadline_s:
                    failures.append(TimeoutError(f"no kill within {_LIMIT_S:.0f} s. Last line: {seen[-1:]}"))
                    break
                time.sleep(0.02)
            time.sleep(part * steps[-1]["seconds"] if steps else 0.0)
            nodes.kill_last()  # first the memory: nothing may be copied from it after the worker's death
            os.kill(next(line["pid"] for line in lines(log, known) if line["kind"] == "worker" and line["rank"]), 9)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        with suppress(TrainingFailed):
            workers.run(steps_until_killed, 2, job, str(folder / "run"), tuple(nodes.names), nodes.addresses, script)
        killer.join()
    if failures:
        raise failures[0]


def measured(seen: Sequence[Mapping[str, Any]], resumed_step: int) -> dict[str, float]:
    """The figures of one generation.

    Args:
        seen: its lines.
        resumed_step: steps that the next generation found done.
    """
    steps = [line for line in seen if line["kind"] == "step" and line["rank"] == 0]
    off = [line["seconds"] for line in steps if line["phase"] == "off"]
    on = [line["seconds"] for line in steps if line["phase"] == "on"]
    numbers = {line["step"] for line in steps if line["phase"] == "on"}
    copies: dict[int, float] = {}
    for line in seen:
        if line["kind"] == "copy" and line["step"] in numbers:
            copies[line["step"]] = max(copies.get(line["step"], 0.0), line["seconds"])
    return {
        "step_s": statistics.mean(off),
        "step_overhead": statistics.mean(on) / statistics.mean(off) - 1,
        "copy_s": statistics.median(copies.values()) if copies else 0.0,
        "copies": len(copies),
        "copies_share": sum(copies.values()) / sum(on),
        "chosen": steps[-1]["interval"],
        "steps_lost": steps[-1]["step"] + 1 - resumed_step,
    }


def row_of(interval: str, figures: Sequence[Mapping[str, float]], parameters: int) -> dict[str, Any]:
    """The row of an interval, of its repeats."""

    def of(name: str) -> float:
        return statistics.median(each[name] for each in figures)

    def spread(name: str) -> list[float]:
        return [round(min(each[name] for each in figures), 4), round(max(each[name] for each in figures), 4)]

    return {
        "interval": interval,
        "chosen": round(of("chosen")),
        "parameters_m": round(parameters / 1e6, 1) if parameters < 1e6 else round(parameters / 1e6),
        "repeats": len(figures),
        "step_s": round(of("step_s"), 4),
        "copy_s": round(of("copy_s"), 4),
        "copies_share": round(of("copies_share"), 4),
        "share_range": spread("copies_share"),
        "step_overhead": round(of("step_overhead"), 4),
        "overhead_range": spread("step_overhead"),
        "steps_lost": of("steps_lost"),
        "steps_lost_range": spread("steps_lost"),
    }


def measure(setting: Setting, intervals: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """All rows, of one run."""
    dice = random.Random(7)  # moments, no secrets
    figures: dict[str, list[dict[str, float]]] = {interval: [] for interval in intervals}
    # The last generation shows only where it resumes.
    plan = [interval for _ in range(repeats) for interval in intervals]
    with tempfile.TemporaryDirectory(prefix="planner-copies-") as name, ExitStack() as stack:
        folder, nodes = Path(name), Nodes(stack)
        log, begins = folder / "log", [0]
        script = Script(rounds=setting.rounds, block_steps=setting.block_steps, log=str(log))
        for interval in [*plan, intervals[0]]:
            is_last = len(begins) > len(plan)
            steps = 20 if interval == "auto" else int(interval)
            now = Script(rounds=0, block_steps=1, log=str(log)) if is_last else script
            after = 0 if is_last else dice.randrange(steps)
            generation(setting.job(folder, interval), folder, nodes, now, after, dice.random())
            nodes.fill()
            begins.append(len(lines(log)))
            if len(begins) > 2:
                _take(figures, plan[len(begins) - 3], lines(log), begins)
    parameters = gpt_shapes(_model(setting)).num_parameters
    return [row_of(interval, found, parameters) for interval, found in figures.items()]


def _take(
    figures: dict[str, list[dict[str, float]]], interval: str, log: Sequence[Mapping[str, Any]], begins: Sequence[int]
) -> None:
    """The figures of the generation before the last one, whose first step is where it resumed."""
    resumed = next(line["step"] for line in log[begins[-2] :] if line["kind"] == "step")
    figures[interval].append(measured(log[begins[-3] : begins[-2]], resumed))
    print(interval, figures[interval][-1], flush=True)


def _model(setting: Setting) -> GptModel:
    return GptModel(kind="gpt", layers=setting.layers, width=setting.width, heads=4, context=setting.context)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The curve as a table."""
    print(f"{'interval':>10} {'copy':>8} {'by copying':>11} {'by step time':>13} {'steps lost':>11}")
    for row in rows:
        name = row["interval"] if row["interval"] != "auto" else f"auto = {row['chosen']}"
        low, high = row["steps_lost_range"]
        print(
            f"{name:>10} {row['copy_s'] * 1000:5.0f} ms {row['copies_share']:>11.1%} {row['step_overhead']:>13.1%} "
            f"{row['steps_lost']:>5g} ({low:g}-{high:g})"
        )


def main() -> int:
    """Measure, write and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--intervals", nargs="+", default=list(_INTERVALS))
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    rows = measure(TOY if options.toy else Setting(), options.intervals, 1 if options.toy else options.repeats)
    if not options.toy:
        write("copies", rows)
    show(rows)
    too_dear = [
        row for row in rows if row["interval"] == "auto" and row["copies_share"] > COPY_SHARE and not options.toy
    ]
    for row in too_dear:
        print(
            f"missed: auto takes {row['copies_share']:.1%} by seconds of copying, bound {COPY_SHARE:.0%}",
            file=sys.stderr,
        )
    return int(bool(too_dear))


if __name__ == "__main__":
    sys.exit(main())
