"""A job that trains on an embedded cluster under one of three policies, and what its ledger says about it.

`stock` is Ray at its defaults, `stock_tuned` Ray with our health checks and intervals, `ours` what users get. All run
the same training function, on the same kind of cluster.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planner import read_job
from planner.dispatch import launch as dispatch
from planner.dispatch.connection import connected
from planner.job import Job
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.store.follow import Follower
from planner.store.records import GenerationRecord, Record, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

POLICIES = ("stock", "stock_tuned", "ours")
_STOCK = dispatch.PollSettings(poll_s=2.0, start_timeout_s=60.0)  # Ray 2.60's defaults


def demo_job(folder: Path, *, steps: int, most: int, every_steps: int) -> Job:
    """The demo's model, data and batch, without held-out samples, whose evaluation would disturb the times."""
    demo = Path(__file__).parent.parent / "jobs" / "demo.yaml"
    settings = {
        "train.steps": steps,
        "workers.max": most,
        "eval.samples": 0,
        "checkpoint.path": folder / "run",
        "checkpoint.every": every_steps,
    }
    return read_job(str(demo), [f"{key}={value}" for key, value in settings.items()])


def paced_job(folder: Path, *, most: int, every_steps: int) -> Job:
    """`_paced_loop.py` at a global batch of 64, without an end."""
    path = folder / "paced.yaml"
    path.write_text(
        f"""
name: paced
model: {{kind: own}}
data: {{kind: own, path: {Path(__file__).with_name("_paced_loop.py")}}}
objective: own
batch: {{global: 64, max_micro: 8}}
train: {{steps: 1000000, optimizer: {{kind: own}}}}
eval: {{samples: 0}}
workers: {{min: 1, max: {most}, cpus: 1, gpus: 0}}
checkpoint: {{path: {folder / "run"}, every: {every_steps}}}
"""
    )
    return read_job(str(path), [])


class Steps:
    """What is known of the run's steps."""

    def steps(self) -> list[tuple[float, int, int]]:
        """(moment, world size, step) of every step seen so far."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to look."""

    def stop(self) -> None:
        """No more."""

    def wait_for(self, what: Callable[[list[tuple[float, int, int]]], bool], within_s: float) -> None:
        """Until the steps seen are such.

        Raises:
            TimeoutError: they are not in time.
        """
        deadline_s = time.monotonic() + within_s
        while not what(self.steps()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nothing of the kind within {within_s:.0f} s. Last steps: {self.steps()[-3:]}")
            time.sleep(0.05)


class StepFile(Steps):
    """The lines that the workers of this process's run write (`_in_workers/step_log.py`), with their own moments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self._offset = [], 0

    def lines(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        if self.path.exists():
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                for line in stream:
                    if line.endswith(b"\n"):  # the last one may be half written
                        self._read.append(json.loads(line))
                        self._offset += len(line)
        return self._read

    def steps(self) -> list[tuple[float, int, int]]:
        """(moment, world size, step), of rank 0: when the gradients of the step were there."""
        mine = (line for line in self.lines() if line["kind"] == "step" and line["rank"] == 0)
        return [(line["at_s"], line["world_size"], line["step"]) for line in mine]


class Log(Steps, threading.Thread):
    """Every record of the run with the moment at which it was seen, to 50 ms."""

    def __init__(self, job: Job) -> None:
        threading.Thread.__init__(self, daemon=True)
        self._follower = Follower(RunFolder(Storage(job.run_path)))
        self.seen: list[tuple[float, int, Record]] = []
        """(monotonic seconds, world size, record)"""
        self._ended = threading.Event()

    def run(self) -> None:
        """Follow the ledger."""
        world_size = 0
        while not self._ended.wait(0.05):
            with suppress(Exception):
                for record in self._follower.new_records():
                    if isinstance(record, GenerationRecord):
                        world_size = record.world_size
                    self.seen.append((time.monotonic(), world_size, record))

    def start(self) -> None:
        """Follow the ledger from now on."""
        threading.Thread.start(self)

    def stop(self) -> None:
        """No more."""
        self._ended.set()

    def steps(self) -> list[tuple[float, int, int]]:
        """(moment, world size, step) of every step seen so far."""
        return [(at, size, record.step) for at, size, record in list(self.seen) if isinstance(record, StepRecord)]


def _stock_trainer(
    monitor_s: float,
    train: Callable[..., None],
    *,
    train_loop_config: Any,
    scaling_config: Any,
    run_config: Any,
    torch_config: Any,
    **_: Any,
) -> Any:
    """Ray's own trainer, without planner's controller and policy."""
    from ray.train.torch import TorchTrainer

    scaling_config.elastic_resize_monitor_interval_s = monitor_s
    return TorchTrainer(
        train,
        train_loop_config=train_loop_config,
        scaling_config=scaling_config,
        run_config=run_config,
        torch_config=torch_config,
    )


def set_policy(policy: str) -> None:
    """Make this process train under it. Called before Ray is imported."""
    timings = _STOCK if policy == "stock" else dispatch.EMBEDDED
    if policy != "ours":
        # With 3 s, Ray's own policy resumes about 30 s after a node was killed. Its default of 60 s takes 74 s.
        monitor_s = 60.0 if policy == "stock" else 3.0
        # `launch` imports it when it needs it. By then Ray is imported, too.
        sys.modules["planner.dispatch.ray_internal.trainer"] = SimpleNamespace(
            ElasticTrainer=partial(_stock_trainer, monitor_s)
        )  # type: ignore[assignment]
        os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "1"
    dispatch.set_environment(timings, embedded=True)


@contextmanager
def running(policy: str, job: Job, nodes: int, script: Callable[[EmbeddedCluster, Log], None]) -> Iterator[Log]:
    """Train under a policy while `script` changes the cluster. Interrupt the run when the script is done."""
    log = Log(job)
    with clustered(policy, job, nodes, log, lambda cluster: script(cluster, log)):
        yield log


@contextmanager
def clustered(
    policy: str, job: Job, nodes: int, log: Steps, script: Callable[[EmbeddedCluster], None], **options: Any
) -> Iterator[None]:
    """Train on a cluster of its own, with the workers' `log`. `options` are those of `trained`."""
    set_policy(policy)
    with EmbeddedCluster(nodes, NodeShape(cpus=1), quick_health_checks=policy != "stock") as cluster:
        trained(policy, job, cluster.address, log, lambda: script(cluster), **options)
        yield


def train(policy: str, job: Job, address: str, script: Callable[[Log], None]) -> Log:
    """Train on a cluster of this machine until `script`, which is told each step, returns. Then interrupt the run."""
    log = Log(job)
    trained(policy, job, address, log, lambda: script(log))
    return log


def trained(
    policy: str,
    job: Job,
    address: str,
    log: Steps,
    script: Callable[[], None],
    *,
    ends_at_once: bool = False,
    **options: Any,
) -> None:
    """Train on a cluster of this machine until `script` returns. Then interrupt the run.

    With `ends_at_once` the workers are ended without a last commit. Other options are those of `train_on_ray`.
    """
    with connected(address, verbose=False):
        log.start()
        failures: list[Exception] = []
        is_over = threading.Event()

        def act() -> None:
            try:
                script()
            except Exception as error:  # noqa: BLE001  # told when the run has ended
                failures.append(error)
            os.kill(os.getpid(), signal.SIGINT)
            while ends_at_once and not is_over.wait(2.0):
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=act, daemon=True).start()
        with suppress(KeyboardInterrupt):
            try:
                launch = dispatch.new_launch(job, job.run_path, frozenset())
                dispatch.train_on_ray(launch, on_cpu=True, embedded=True, **options)
            finally:
                is_over.set()
        log.stop()
        if failures:
            print(f"{policy}: {failures[0]!r}", file=sys.stderr)
