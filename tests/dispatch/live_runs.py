"""Jobs on the shared cluster, and what is done to them while they run."""

import json
import os
import signal
import threading
import time
from pathlib import Path

from planner.dispatch import launch as dispatch
from planner.job import Job
from planner.local_cluster.processes import members
from planner.store.follow import Follower
from planner.store.ledger import segment_name
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

TEST_TIMINGS = dispatch.PollSettings(poll_s=0.25, start_timeout_s=10.0, resize_monitor_s=2.0)
# Events are waited for. Only what hangs takes so long, also at a load of 20.
LIMIT_S = 300.0


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


def fit(job, accept=()):
    launch = dispatch.new_launch(job, job.run_path, frozenset(accept))
    dispatch.train_on_ray(launch, TEST_TIMINGS, on_cpu=True, embedded=True)


def run_of(job):
    return RunFolder(Storage(job.run_path))


class When(threading.Thread):
    """Does something once the run has done so many steps at a world size. Fails the test if it never came to it."""

    def __init__(self, job, world_size, steps, act):
        super().__init__(daemon=True)
        self._follower = Follower(run_of(job), from_now=True)
        self._world_size, self._steps, self._act = world_size, steps, act
        self.done = False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.join(timeout=5)

    def run(self):
        size = seen = 0
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for record in self._follower.new_records():
                if isinstance(record, GenerationRecord):
                    size, seen = record.world_size, 0
                seen += isinstance(record, StepRecord)
            if size == self._world_size and seen >= self._steps:
                self._act()
                self.done = True
                return
            time.sleep(0.1)


class Script(threading.Thread):
    """Does one thing after another: `(world size, steps done at it since the last act, what)`."""

    def __init__(self, job, acts, within_s=LIMIT_S):
        super().__init__(daemon=True)
        self._follower = Follower(run_of(job), from_now=True)
        self._acts, self._within_s = list(acts), within_s
        self.done = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.join(timeout=5)

    def run(self):
        size = 0
        for world_size, steps, act in self._acts:
            seen = 0
            deadline = time.monotonic() + self._within_s
            while size != world_size or seen < steps:
                for record in self._follower.new_records():
                    if isinstance(record, GenerationRecord):
                        size, seen = record.world_size, 0
                    seen += isinstance(record, StepRecord)
                if time.monotonic() > deadline:
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.1)
            act()
            self.done += 1


class Ledger:
    """What the run has done, as it goes on."""

    def __init__(self, run):
        self._run = run
        self._follower = Follower(run)
        self._size = 0

    def await_steps(self, world_size, steps, within_s=LIMIT_S):
        """Until so many more have been done at this size, one after another."""
        seen, deadline_s = 0, time.monotonic() + within_s
        while self._size != world_size or seen < steps:
            assert time.monotonic() < deadline_s, f"{seen} of {steps} at {world_size}; {messages(self._run)}"
            for record in self._follower.new_records():
                if isinstance(record, GenerationRecord):
                    self._size, seen = record.world_size, 0
                seen += isinstance(record, StepRecord)
            time.sleep(0.1)


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
