"""One run of `bench/resize.py`: a cluster of its own, a policy, a size, a storage and a path."""

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _ballast import Ballast
from _cluster import StepFile, clustered, demo_job

from planner.job import GptModel, Job
from planner.job.model import gpt_shapes
from planner.local_cluster.embedded import EmbeddedCluster

LOCAL, SLOW = "local", "20 MB/s, 20 ms"
# The stock policy waits out a minute before it looks, and another for a place on a node that is gone.
_PATIENCE_S = 240.0
# A commit of the largest model takes 90 s on slow storage. One may have to wait for another.
_SLOW_PATIENCE_S = 900.0
_NOTICE_S = 20.0
_EVERY_STEPS = 50
_SLOW_BYTES_PER_S = 20e6
IN_WORKERS = Path(__file__).with_name("_in_workers")
MODELS = {"3": (4, 256), "42": (6, 760), "151": (12, 1020)}
"""name of a size -> layers and width of the gpt"""
SIZES = ("demo", *MODELS)
# Every worker of the new group takes about as much: shards, gradients, whole weights.
_BALLAST_STATES = 2
STATE_BYTES = 12
"""per parameter: weights and AdamW's two averages in float32"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one run measures."""

    size: str
    policy: str = "ours"
    storage: str = LOCAL
    path: str = "memory"
    """how a planned change passes the state on: `memory` or `storage`. Other policies than ours have only storage"""

    @property
    def events(self) -> tuple[str, ...]:
        """In this order. Nodes die at the small sizes only, because storage decides what that costs at others."""
        has_kill = self.size in ("demo", "3") and self.storage == LOCAL
        return ("grow", "preempt", "kill") if has_kill else ("grow", "preempt")

    @property
    def patience_s(self) -> float:
        """For anything that the run should show."""
        return _PATIENCE_S if self.storage == LOCAL else _SLOW_PATIENCE_S

    @property
    def notice_s(self) -> float:
        """Long enough for a commit and a half, and a commit in flight."""
        seconds = 3 * state_bytes(self.size) / _SLOW_BYTES_PER_S if self.storage == SLOW else 0.0
        return _NOTICE_S + seconds


def parameters(size: str) -> int:
    """The parameters of a size's model."""
    layers, width = MODELS.get(size, (3, 96))
    context = 96 if size == "demo" else 4
    model = GptModel(kind="gpt", layers=layers, width=width, heads=4, context=context)
    return gpt_shapes(model).num_parameters


def parameters_m(size: str) -> float:
    """In millions, as rows say it."""
    millions = parameters(size) / 1e6
    return round(millions, 1) if millions < 1 else round(millions)


def state_bytes(size: str) -> int:
    """Of a checkpoint."""
    return STATE_BYTES * parameters(size)


def job_of(case: Case, folder: Path) -> Job:
    """The demo's job, or a gpt with short steps: six samples of 4 bytes."""
    url = f"slow://{folder}/run" if case.storage == SLOW else f"{folder}/run"
    settings = {"path": url, "memory": "auto" if case.path == "memory" else "off"}
    # A death at the small sizes comes half way between two commits. Otherwise users' own pace counts.
    if "kill" in case.events:
        settings["every"] = f"{_EVERY_STEPS} steps"
    if case.size == "demo":
        job = demo_job(folder, steps=1_000_000, most=4, every_steps=_EVERY_STEPS)
        checkpoint = job.checkpoint.model_validate({**job.checkpoint.model_dump(), **settings})
        return job.model_copy(update={"checkpoint": checkpoint})
    (folder / "corpus").write_bytes(np.random.default_rng(0).integers(1, 128, 2**20, dtype=np.uint8).tobytes())
    layers, width = MODELS[case.size]
    return Job.model_validate(
        {
            "name": "resize",
            "model": {"kind": "gpt", "layers": layers, "width": width, "heads": 4, "context": 4},
            "data": {"kind": "text", "path": str(folder / "corpus")},
            "batch": {"global": 6, "max_micro": 6},
            "train": {"steps": 1_000_000, "optimizer": {"kind": "adamw", "lr": 1e-4}},
            "eval": {"samples": 0},
            "workers": {"min": 1, "max": 4, "cpus": 1, "gpus": 0},
            "checkpoint": settings,
        }
    )


Step = tuple[float, int, int]


def row_of(event: str, steps: list[Step], at_s: float, before: int, after: int) -> dict[str, Any]:
    """What an event cost, of the steps around it.

    Args:
        event: its name.
        steps: (moment, world size, step), oldest first.
        at_s: when it happened.
        before: the world size.
        after: the world size, of at least two steps.
    """
    first_s, _, first = next(step for step in steps if step[0] > at_s and step[1] == after)
    old = [step for step in steps if step[0] < first_s and step[1] == before]
    moments = [max((at for at, _, _ in old if at <= at_s), default=at_s)]
    moments += [*(at for at, _, _ in old if at > at_s), first_s]
    new = [at for at, size, _ in steps if at >= first_s and size == after]
    step_s = statistics.median(later - earlier for earlier, later in pairwise(new))
    return {
        "event": event,
        "seconds_to_first_step": round(first_s - at_s, 2),
        "pause_s": round(max(later - earlier for earlier, later in pairwise(moments)), 3),
        "steps_lost": max(0, max(number for _, _, number in old) + 1 - first),
        "step_s": round(step_s, 3),
        "net_pause_s": round(first_s - moments[-2] - step_s, 3),
    }


def spans_of(lines: list[dict[str, Any]], at_s: float, before: int, after: int) -> dict[str, list[float]]:
    """Phases between the last step at the old size and the first at the new one, in the order of their begins.

    Returns:
        name -> seconds from that last step to the phase's begin, and for how long the slowest worker was in it.
    """
    steps = [line for line in lines if line["kind"] == "step" and line["rank"] == 0]
    first_s = next(line["at_s"] for line in steps if line["at_s"] > at_s and line["world_size"] == after)
    last_s = max((s["at_s"] for s in steps if s["at_s"] < first_s and s["world_size"] == before), default=at_s)
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["kind"] == "step" or not last_s <= line["at_s"] <= first_s:
            continue
        began_s = line.get("began_s", line["at_s"])
        known = found.setdefault(line["name"], [began_s - last_s, 0.0])
        known[0], known[1] = min(known[0], began_s - last_s), max(known[1], line["at_s"] - began_s)
    in_order = sorted(found.items(), key=lambda item: item[1])
    return {name: [round(number, 3) for number in numbers] for name, numbers in in_order} | {
        "first step": [round(first_s - last_s, 3), 0.0]
    }


class Run:
    """One run of a case, from its script's side."""

    def __init__(self, case: Case, folder: Path, log: StepFile, cluster: EmbeddedCluster) -> None:
        self._case, self._run, self._log, self._cluster = case, folder / "run", log, cluster
        self.rows: list[dict[str, Any]] = []

    def script(self) -> None:
        """All events of the case."""
        self._settle(2, 0.0)
        for event in self._case.events:
            getattr(self, f"_{event}")()

    def _grow(self) -> None:
        self._wait_until_durable(0)
        with self._ballast(3):
            self._cluster.add_node()
            num_commits = self._num_commits
            self._measure("grow", time.monotonic(), 2, 3)
        self._settle(3, 0.0)
        self._wait_until_durable(num_commits)
        time.sleep(2)

    def _preempt(self) -> None:
        from planner.dispatch.ray_internal import drain_node

        node = self._cluster.nodes()[-1]
        with self._ballast(2):
            at_s = time.monotonic()
            drain_node(node, self._case.notice_s, "bench")
            deadline_s = at_s + self._case.notice_s
            while time.monotonic() < deadline_s and not any(at > at_s and w == 2 for at, w, _ in self._log.steps()):
                time.sleep(0.05)
            if node in self._cluster.nodes():
                self._cluster.kill_node(node)
            self._measure("preempt", at_s, 3, 2)
        self._settle(2, at_s)

    def _ballast(self, world_size: int) -> Ballast:
        """Until the workers of the group of this size begin."""
        log = StepFile(self._log.path)
        known = len(log.lines())

        def has_begun() -> bool:
            return any(line.get("name") == "hooks" and line["world_size"] == world_size for line in log.lines()[known:])

        return Ballast(_BALLAST_STATES * state_bytes(self._case.size), has_begun)

    def _kill(self) -> None:
        # Each policy loses what it did since its last commit: all are killed half way to the next one.
        step = self._log.steps()[-1][2]
        halfway = step - step % _EVERY_STEPS + _EVERY_STEPS * 3 // 2
        self._log.wait_for(lambda steps: steps[-1][2] >= halfway, self._case.patience_s)
        at_s = time.monotonic()
        self._cluster.kill_node(self._cluster.nodes()[-1])
        self._measure("kill", at_s, 2, 1)

    def _settle(self, size: int, since_s: float) -> None:
        num_steps = {"42": 12, "151": 6}.get(self._case.size, 25)
        self._log.wait_for(
            lambda steps: sum(s == size and at > since_s for at, s, _ in steps) >= num_steps, self._case.patience_s
        )

    @property
    def _num_commits(self) -> int:
        """Durable ones so far. Old manifests are never removed."""
        return len(list((self._run / "manifests").glob("*.json")))

    def _wait_until_durable(self, num_before: int) -> None:
        """Until there are more commits. A planned stop may stay in memory only then."""
        # Through storage a generation begins with a commit, so only the first one has to wait.
        if self._case.policy == "ours" and (self._case.path == "memory" or not num_before):
            self._log.wait_for(lambda _steps: self._num_commits > num_before, self._case.patience_s)

    def _measure(self, event: str, at_s: float, before: int, after: int) -> None:
        self._log.wait_for(
            lambda steps: sum(at > at_s and size == after for at, size, _ in steps) >= 4, self._case.patience_s
        )
        row = row_of(event, self._log.steps(), at_s, before, after)
        phases = spans_of(self._log.lines(), at_s, before, after)
        row["from_memory"] = "lifecycle.load_held" in phases
        if os.environ.get("PLANNER_BENCH_SPANS") == "1":
            row["spans"] = phases
        self.rows.append(row)


def run(case: Case) -> list[dict[str, Any]]:
    """The rows of one run, in this process, whose environment is `environment`'s."""
    import step_log

    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="planner-resize-") as name:
        log = StepFile(Path(os.environ[step_log.FILE]))

        def script(cluster: EmbeddedCluster) -> None:
            one = Run(case, Path(name), log, cluster)
            try:
                one.script()
            finally:
                found.extend(one.rows)

        job = job_of(case, Path(name))
        # Workers of this machine share its cores, so a growth seldom pays by itself.
        options = {"hooks": step_log.hooks, "eager": True, "ends_at_once": True}
        with clustered(case.policy, job, 2, log, script, **options):
            pass
    facts = asdict(case) | {"parameters_m": parameters_m(case.size)}
    return [{"event": row["event"], **facts, **row} for row in found]


def environment(folder: Path, *, spans: bool) -> dict[str, str]:
    """Of a process that calls `run`, and of the cluster that it starts. Its files go to this folder."""
    path = os.pathsep.join([str(IN_WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PLANNER_BENCH_STEPS": str(folder / "steps"),
        "PLANNER_BENCH_BUCKET": str(folder / "bucket"),
        "PLANNER_BENCH_SPANS": "1" if spans else "0",
    }


if __name__ == "__main__":
    print("ROWS " + json.dumps(run(Case(**json.loads(sys.argv[1])))))
