"""Jobs on the shared cluster, and what is done to them while they run."""

import json
import os
import signal
import threading
from pathlib import Path

from events import wait_for

from planner.dispatch import launch as dispatch
from planner.job import Job
from planner.local_cluster.processes import members
from planner.store.follow import Follower
from planner.store.ledger import segment_name
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

# planner's policy waits this long for a place on a node that has died unseen.
TEST_TIMINGS = dispatch.PollSettings(poll_s=0.25, start_timeout_s=dispatch.CLUSTER.start_timeout_s)


def make_job(tmp_path, *, steps, most, every_steps=5, **train):
    rows = tmp_path / "rows.jsonl"
    if not rows.exists():
        rows.write_text("".join(json.dumps({"text": f"{i} " + "abcdefghij " * (i % 7)}) + "\n" for i in range(300)))
    return Job.model_validate(
        {
            "name": "test",
            "model": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 64},
            "data": {"kind": "jsonl", "path": str(rows)},
            "batch": {"global": 13, "max_micro": 4},
            "train": {"steps": steps, "optimizer": {"kind": "adamw", "lr": 1e-3}, **train},
            "eval": {"samples": 5, "every": 1000},
            "workers": {"min": 1, "max": most, "gpus": 0},
            "checkpoint": {"path": str(tmp_path / "run"), "every": every_steps},
        }
    )


def fit(job, **options):
    """Train on the shared cluster, in the main thread, until the job is done, refused or interrupted."""
    train(dispatch.new_launch(job, job.run_path, frozenset()), **options)


def train(launch, **options):
    """`fit` for a launch that the test knows."""
    dispatch.train_on_ray(launch, on_cpu=True, embedded=True, **options)


def run_of(job):
    return RunFolder(Storage(job.run_path))


INTERRUPT = "as Ctrl-C does"
"""an act of a `Script`"""


class RunIsOver(Exception):
    """Raised in a `Script` whose run has ended before its last act."""


class Script(threading.Thread):
    """Does one thing after another in a run of this process: `(world size, steps done at it since the last act, what)`.

    An act that fails, or whose turn does not come, interrupts the run, and its error is raised on exit.
    """

    def __init__(self, job, acts):
        super().__init__(daemon=True)
        self._ledger = Ledger(run_of(job), from_now=True)
        self._acts = list(acts)
        self._is_over = threading.Event()
        self._error = None
        self.done = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self.join()
        if self._error is not None:
            raise self._error

    def run(self):
        try:
            for world_size, steps, act in self._acts:
                self._ledger.await_steps(world_size, steps, self.wait_for)
                self.interrupt() if act is INTERRUPT else act()
                self.done += 1
        except RunIsOver:
            pass
        except BaseException as error:  # noqa: BLE001  # raised in the main thread
            self._error = error
            self.interrupt()

    def wait_for(self, event, *missing):
        """As `events.wait_for`, but it ends with the run."""
        found = wait_for(lambda: self._is_over.is_set() or event(), *missing)
        if self._is_over.is_set():
            raise RunIsOver
        return found

    def interrupt(self):
        """End the run that this process drives, as Ctrl-C does. It still commits, and this does not wait for it."""
        if not self._is_over.is_set():
            os.kill(os.getpid(), signal.SIGINT)


class Ledger:
    """What the run has done, as it goes on."""

    def __init__(self, run, *, from_now=False):
        self._run = run
        self._follower = Follower(run, from_now=from_now)
        self._size = 0

    def await_steps(self, world_size, steps, wait_for=wait_for):
        """Until so many more have been done at this size, one after another."""
        seen = 0

        def are_done():
            nonlocal seen
            for record in self._follower.new_records():
                if isinstance(record, GenerationRecord):
                    self._size, seen = record.world_size, 0
                seen += isinstance(record, StepRecord)
            return self._size == world_size and seen >= steps

        wait_for(are_done, lambda: f"{seen} of {steps} at {world_size}; {messages(self._run)}")


def notes(job):
    """The notes in the run's ledger."""
    return messages(run_of(job))


def messages(run):
    """The same of any run."""
    return [record["message"] for record in records(run, "event")]


def records(run, kind):
    """All records of a kind in its ledger, as they are in the files, oldest first."""
    lines = [line for number in run.segments() for line in run.storage.read(segment_name(number)).splitlines()]
    found = [json.loads(line)["record"] for line in lines]
    return [record for record in found if record["kind"] == kind]


def processes_of(cluster):
    """The process ids of an embedded cluster, the supervisor's among them."""
    leader = cluster._link._process.pid
    return {leader, *members(leader)}


def workers_of(cluster):
    """The process ids of its Ray Train workers: of this cluster, since others may run on this machine."""
    return [pid for pid in processes_of(cluster) if "RayTrainWorker" in command_line(pid)]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it ended meanwhile
        return ""
