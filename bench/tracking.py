"""What a tracker costs beside a step of 300 ms: with a server that is down, and with one that answers after 10 s.

    python bench/tracking.py        (about eight minutes)

Each step sleeps for 290 ms, as a CPU does while a GPU computes, then computes for some 10 ms on all cores, and writes
the records of a real step. Blocks of 10 steps take turns: no tracker, MLflow with a dead server, W&B with a dead
server, MLflow with a slow one, in another order each time. The child processes of the other turns are stopped (SIGSTOP)
meanwhile. A block's time is the median of its steps. The ratio is the median over the rounds of a block's time divided
by that of the block without a tracker, its interval the 95 % bootstrap interval of that median. `noise` is the ratio of
two blocks without a tracker. `cpu` is the child's processor time per second of training. At the end the servers answer,
and `caught_up` says whether the tracker has every step.
"""

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _results import write

from planner.job import Job
from planner.local_cluster.processes import members
from planner.runner.tracking_child import end_child, start_child

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "tracking"))
from ledgers import Run, measurement  # noqa: E402
from mlflow_server import stored  # noqa: E402

_STEP_S, _COMPUTE_S, _BLOCK, _ROUNDS, _DELAY_S, _TICKS = 0.3, 0.01, 10, 24, 10.0, os.sysconf("SC_CLK_TCK")


class Toy:
    """A step of about 300 ms, of which about 10 ms compute on all cores."""

    def __init__(self) -> None:
        self._matrix = torch.rand(512, 512) / 512
        seconds = statistics.median(self._computed_s(10) for _ in range(20)) / 10
        self._count = max(1, round(_COMPUTE_S / seconds))

    def _computed_s(self, count: int) -> float:
        began_s = time.perf_counter()
        for _ in range(count):
            self._matrix @ self._matrix
        return time.perf_counter() - began_s

    def step(self) -> None:
        """Sleep and compute."""
        time.sleep(_STEP_S - _COMPUTE_S)
        self._computed_s(self._count)


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def server(store: Path, delay_s: float, port: int) -> "subprocess.Popen[bytes]":
    """MLflow's interface at that port."""
    script = str(ROOT / "tests" / "tracking" / "mlflow_server.py")
    command = ["nice", "-n", "10", sys.executable, script, str(store), str(delay_s), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


class Side:
    """One of the turns: a run, and the child that follows it."""

    def __init__(self, folder: Path, tracking: dict[str, str] | None) -> None:
        self.run = Run(folder).begin(0)
        self.run.steps(1).commit().steps(1)
        self.child = start_child(job(folder, tracking), self.run.url, {"is_patient": True}) if tracking else None
        self.cpu_s = self.wall_s = 0.0

    def processes(self) -> list[int]:
        """The child and what it started."""
        return [self.child.pid, *members(self.child.pid)] if self.child else []

    def send(self, number: int) -> None:
        """Stop the child, or let it go on."""
        for pid in self.processes():
            os.kill(pid, number)

    def _cpu_s(self) -> float:
        words = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.processes()]
        return sum(int(each[11]) + int(each[12]) for each in words) / _TICKS

    def block(self, toy: Toy) -> float:
        """The median seconds of some steps, with the child awake."""
        self.send(signal.SIGCONT)
        before_s, times = self._cpu_s(), [time.perf_counter()]
        for number in range(_BLOCK):
            toy.step()
            self.run.steps(1)
            if number == _BLOCK - 1:
                self.run.write(measurement(self.run.step, _BLOCK)).commit()
            times.append(time.perf_counter())
        self.cpu_s += self._cpu_s() - before_s
        self.wall_s += times[-1] - times[0]
        self.send(signal.SIGSTOP)
        return statistics.median(after - before for before, after in pairwise(times))


def job(folder: Path, tracking: dict[str, str] | None) -> Job:
    """A job with that tracker."""
    return Job.model_validate(
        {
            "name": "walk",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": "text.txt"},
            "batch": {"global": 12, "max_micro": 4},
            "train": {"steps": 100_000, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "checkpoint": {"path": str(folder)},
            "tracking": tracking or [],
        }
    )


def interval(ratios: list[float]) -> list[float]:
    """The 95 % bootstrap interval of the median."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return [round(medians[50], 4), round(medians[1949], 4)]


def measured(sides: dict[str, Side]) -> dict[str, list[float]]:
    """The seconds of each side's blocks, in turns."""
    toy, dice = Toy(), random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in sides}
    time.sleep(30)  # the children have loaded their libraries, and have failed or waited for the first time
    for side in sides.values():
        side.send(signal.SIGSTOP)
    for number in range(_ROUNDS + 1):
        for name in dice.sample(list(sides), len(sides)):
            seconds = sides[name].block(toy)
            if number:  # the first round warms up
                times[name].append(seconds)
    return times


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, ports = Path(name), [free_port(), free_port(), free_port()]
        slow = server(folder / "slow.jsonl", _DELAY_S, ports[1])
        stack.callback(slow.kill)
        os.environ.update(WANDB_API_KEY="0" * 40, WANDB_BASE_URL=f"http://127.0.0.1:{ports[2]}")
        sides = {
            "none": Side(folder / "none", None),
            "noise": Side(folder / "noise", None),
            "mlflow, dead server": Side(folder / "dead", {"kind": "mlflow", "uri": f"http://127.0.0.1:{ports[0]}"}),
            "wandb, dead server": Side(folder / "wandb", {"kind": "wandb"}),
            "mlflow, answers after 10 s": Side(
                folder / "slow", {"kind": "mlflow", "uri": f"http://127.0.0.1:{ports[1]}"}
            ),
        }
        times = measured(sides)
        revived = server(folder / "dead.jsonl", 0.0, ports[0])
        stack.callback(revived.kill)
        has: dict[str, bool] = {}
        for which, store in (("mlflow, dead server", "dead.jsonl"), ("mlflow, answers after 10 s", "slow.jsonl")):
            has[which] = caught_up(sides[which], folder / store)
        sides["wandb, dead server"].send(signal.SIGKILL)
        write("tracking", [row(which, side, times, has) for which, side in sides.items() if which != "none"])


def caught_up(side: Side, store: Path) -> bool:
    """Whether the server has each step once after the child's end."""
    assert side.child is not None
    side.send(signal.SIGCONT)
    end_child(side.child)
    side.child.wait()
    steps = [step for name, step, _ in stored(store) if name == "train/loss"]
    return steps == list(range(1, side.run.step + 1))


def row(which: str, side: Side, times: dict[str, list[float]], has: dict[str, bool]) -> dict[str, Any]:
    """The figures of one side."""
    ratios = [mine / none for mine, none in zip(times[which], times["none"], strict=True)]
    return {
        "tracker": which,
        "ratio": round(statistics.median(ratios), 4),
        "ratio_95": interval(ratios),
        "step_s": round(statistics.median(times["none"]), 4),
        "cpu": round(side.cpu_s / side.wall_s, 4),
        "rounds": len(ratios),
        "steps_per_block": _BLOCK,
        "caught_up": has.get(which),
        "aim": 1.005,
    }


if __name__ == "__main__":
    main()
