"""Runs a job under every fault that a cluster can have, and checks the result.

    python tests/chaos/storm.py --minutes 20 --seed 1        (bench/chaos.py keeps what was found)
    python tests/chaos/storm.py --once --seed 1              (each kind once, however long that takes)

It needs no special rights. As root it also cuts networks, and fills, slows and freezes a disk that it makes.
When the time is up, or each kind has happened, the run is interrupted, and the storm checks:

hash        weights and optimizer equal, bit for bit, those of an undisturbed run of as many steps. So do every
            step's loss, gradient norm and checksum
audit       lost 0, repeated 0, nothing altered. docs/verify_run.py agrees
witness     the reads that the data set saw equal the steps in the ledger (chaos_witness.py)
hangs       no pause between two steps is longer than `--patience`
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_faults import FAULTS, Fault
from chaos_hosts import Hosts, isolation
from chaos_memory import MEMORY_FAULTS
from chaos_witness import reconcile

from planner.data.user_dataset import function_of
from planner.errors import RunError, StoreError
from planner.events.saves import LoadedFromMemory
from planner.files import read_job
from planner.job import Job, batch_sizes
from planner.store.follow import Follower
from planner.store.records import EventRecord, GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

_HERE = Path(__file__).parent
_INSIDE = "PLANNER_CHAOS_INSIDE"
_DISK_MIB = 192
_CAUSE_S = 5.0
# For what must come, as EVENT_S of the tests (tests/harness/events.py).
_EVENT_S = 300.0
# A fault of which each second try meets its aim misses thirty times once in a thousand million.
_MOST_TRIES = 30
# Only a full disk may end a driver, as a person must make room. A driver survives all other faults.
_MAY_END_A_RUN = ("the disk is full: ", "No space left on device")
# What a worker notes when its node's keeper has no room.
_REFUSED = ("bytes left, with ",)
_JOB = """
name: chaos
model: {kind: own}
data: {kind: own, path: PATH}
objective: own
batch: {global: 12, max_micro: 2, equality: bitwise}
train: {steps: 1000000, optimizer: {kind: own}}
eval: {samples: 0}
workers: {min: 1, max: 4, cpus: 1, gpus: 0}
checkpoint: {path: RUN, every: 20 steps, keep: 3, memory: 2}
"""


class Storm:
    """The run, its hosts, and the faults to come."""

    most, usual, least = 5, 4, 2
    """nodes: at the most, as many as come back by themselves in the end, and as many as come back at once"""

    def __init__(
        self,
        scratch: Path,
        *,
        disk: Path | None,
        isolated: bool,
        patience_s: float,
        write_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.scratch, self.say, self._patience_s = scratch, say, patience_s
        self.disk = disk or scratch
        self.folder = self.disk / "run"
        self.run = RunFolder(Storage(str(self.folder)))
        self.job = write_job(scratch / "watched", self.folder)
        self.witness = write_witness(scratch / "watched", pause_s=0.02, write_s=write_s)
        self.writing = self.witness / "writing"
        """the files of commits that workers are writing now"""
        self.write_s = write_s
        """for which a commit is written in the background, at least"""
        self.hits: Counter[str] = Counter()
        """faults that met what they were for, by the evidence that it left: a commit in flight, a hand-over, copies"""
        self.phases: Counter[str] = Counter()
        """of hand-overs in which something died"""
        self.resumes: Counter[str] = Counter()
        """seen: from `memory` and from `storage`"""
        self.refusals = 0
        """notes of workers without copies in memory, because a keeper has no room"""
        self.hosts = Hosts(scratch, isolated=isolated)
        self.driver_ends: Counter[str] = Counter()
        self.findings: list[str] = []
        self.steps = 0
        """seen done, those that were done again included"""
        self.sizes: set[int] = set()
        self.harmed: set[str] = set()
        """commits"""
        self.longest_pause: tuple[float, list[str]] = (0.0, [])
        """seconds, and the faults in it or just before it"""
        self._acts: list[tuple[float, str]] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._num_drivers = 0
        self._killed = ""
        self._restart_s = 0.0
        self._later: list[tuple[float, Callable[[], Any]]] = []
        self._follower = Follower(self.run)
        self._progress_s = time.monotonic()
        self._resumed_from = ""
        self._began_s = time.monotonic()

    # -- for faults

    @property
    def is_training(self) -> bool:
        """Whether a step was done just now."""
        return time.monotonic() - self._progress_s < 1

    def any_node(self, dice: random.Random) -> str:
        """A node to do something to."""
        nodes = sorted(self.hosts.nodes, key=lambda node: self.hosts.nodes[node].number)
        return dice.choice(nodes) if nodes else ""

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Do it when so many seconds are over."""
        self._later.append((time.monotonic() + seconds, act))

    def kill_later(self, node: str, seconds: float) -> None:
        """As a cloud does at the end of its notice."""
        self.later(seconds, lambda: node in self.hosts.nodes and self.hosts.kill(node))

    def end_driver(self, number: int) -> bool:
        """End the driver by a signal. `tick` starts it again."""
        if self._driver is None or self._driver.poll() is not None:
            return False
        self._killed = signal.Signals(number).name
        self._driver.send_signal(number)
        return True

    def try_second_driver(self) -> bool:
        """Start the same command again, while the first one has been heard of."""
        if self._driver is None or not self.is_training:
            return False
        second = self._start_driver("second")
        deadline_s = time.monotonic() + _EVENT_S
        while second.poll() is None and time.monotonic() < deadline_s:
            self.pause(0.2)
        if second.poll() is None:
            second.send_signal(signal.SIGINT)
            second.wait(_EVENT_S)
            raise RunError(f"a second driver was not turned away within {_EVENT_S:.0f} s")
        output = self._output("second")
        if second.returncode == 0 or "another driver" not in output:
            raise RunError(f"a second driver ended with {second.returncode}: {output[-500:]}")
        return True

    def pause(self, seconds: float, *, touches_disk: bool = True) -> None:
        """Let time pass, and keep everything going that should."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            if touches_disk:
                self.tick()
            time.sleep(min(0.2, max(0.0, until_s - time.monotonic())))

    def pause_until(self, is_so: Callable[[], bool], most_s: float, *, every_s: float = 0.2) -> bool:
        """Let time pass until something is so. Returns whether it is."""
        until_s = time.monotonic() + most_s
        while not (found := is_so()) and time.monotonic() < until_s:
            self.pause(every_s)
        return found

    def until_steps(self, count: int) -> None:
        """Let time pass until there are so many new steps."""
        self._watch()
        target = self.steps + count
        while self.steps < target:
            self.pause(0.2)

    def is_durable(self, commit: str) -> bool:
        """Whether a commit has a manifest."""
        return (self.folder / "manifests" / f"{commit}.json").exists()

    # -- what keeps it going

    def tick(self) -> None:
        """What is due is done, the driver is started again, there are nodes, and it goes on.

        Raises:
            RunError: it does not.
        """
        now = time.monotonic()
        due = [act for at, act in self._later if at <= now]
        self._later = [(at, act) for at, act in self._later if at > now]
        for act in due:
            act()
        self._keep_driver()
        self.hosts.forget_the_dead()
        if len(self.hosts.nodes) < self.least:
            self.hosts.add()
        self._watch()

    def _keep_driver(self) -> None:
        if self._driver is not None and (code := self._driver.poll()) is not None:
            output = self._output(str(self._num_drivers))
            if "Traceback" in output:
                raise RunError(f"the driver printed a traceback: {output[-3000:]}")
            last = (output.strip().splitlines() or ["nothing"])[-1].replace(str(self.folder), "RUN")
            self.driver_ends[f"by {self._killed}" if self._killed else f"by itself, {code}: {last}"] += 1
            if not self._killed:
                self.say(f"the driver ended by itself: {last}")
                if not any(text in last for text in _MAY_END_A_RUN):
                    self.findings.append(f"the driver ended by itself: {last}")
            self._driver, self._restart_s = None, time.monotonic() + 2.0
        if self._driver is None and time.monotonic() >= self._restart_s:
            self._num_drivers += 1
            self._killed = ""
            self._driver = self._start_driver(str(self._num_drivers))

    def _start_driver(self, name: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "planner.cli", "run", self.job, "--address", self.hosts.address]
        with (self.scratch / f"driver-{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.hosts.environment,
                start_new_session=True,
            )

    def _output(self, name: str) -> str:
        return (self.scratch / f"driver-{name}.log").read_text(errors="replace")

    def _watch(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(StoreError):
            for record in self._follower.new_records():
                if isinstance(record, GenerationRecord):
                    self.sizes.add(record.world_size)
                    self._resumed_from = "storage" if record.parent else ""
                if isinstance(record, EventRecord):
                    self.refusals += any(text in record.message for text in _REFUSED)
                    if record.event == LoadedFromMemory.name:
                        self._resumed_from = "memory"
                if isinstance(record, StepRecord):
                    self.steps += 1
                    self.resumes.update([self._resumed_from] if self._resumed_from else [])
                    self._resumed_from = ""
                    # A step that was under way may still come after the fault that ended them.
                    causes = [name for at, name in self._acts if at > self._progress_s - _CAUSE_S]
                    self.longest_pause = max(self.longest_pause, (now - self._progress_s, causes))
                    self._progress_s = now
        if now - self._progress_s > self._patience_s:
            last = self._output(str(self._num_drivers)).strip().splitlines()[-3:]
            raise RunError(f"no step for {self._patience_s:.0f} s. The driver's last lines: {last}")

    # -- the storm itself

    def rage(self, seconds: float, dice: random.Random, kinds: list[Fault]) -> Counter[str]:
        """Make faults of all kinds for so long, each once a round in random order. Returns how often each came."""
        done, deck = self._begin(), list[Fault]()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            deck = deck or dice.sample(kinds, len(kinds))
            self._strike(deck.pop(), dice, done)
        return done

    def rage_once(self, dice: random.Random, kinds: list[Fault]) -> Counter[str]:
        """Make faults in random order until each kind has happened once. One that missed its aim is tried again.

        Raises:
            RunError: a kind never found what it is for.
        """
        done, deck = self._begin(), dice.sample(kinds, len(kinds))
        tries: Counter[str] = Counter()
        while deck:
            fault = deck.pop(0)
            tries[fault.name] += 1
            if not self._strike(fault, dice, done):
                deck.append(fault)
                if tries[fault.name] == _MOST_TRIES:
                    raise RunError(f"{fault.name}: {_MOST_TRIES} tries met nothing that this fault is for")
        return done

    def _begin(self) -> Counter[str]:
        self.until_steps(30)
        self.longest_pause = (0.0, [])  # what starting a cluster takes is no pause
        self._began_s = time.monotonic()
        return Counter()

    def _strike(self, fault: Fault, dice: random.Random, done: Counter[str]) -> bool:
        """One fault, at once or after new steps. Returns whether it happened, and met its aim if it has one."""
        hits = self.hits[fault.name]
        self._acts.append((time.monotonic(), fault.name))
        if happened := fault.act(self, dice):
            done[fault.name] += 1
            self.say(f"{time.monotonic() - self._began_s:5.0f} s  {fault.name}; {self.steps} steps")
        if len(self.hosts.nodes) < self.usual and dice.random() < 0.5:
            done["node added"] += bool(self.hosts.add())
        if dice.random() < 0.7:
            self.until_steps(dice.choice([1, 10, 40]))
        self.pause(dice.uniform(0.0, 3.0))
        return happened and (not fault.has_aim or self.hits[fault.name] > hits)

    def calm(self) -> int:
        """Undo lasting faults, wait for steps, interrupt the run, and return the committed step."""
        for _, act in self._later:
            act()
        self._later = []
        self.until_steps(30)
        while not self.end_driver(signal.SIGINT):
            self.pause(0.5)
        assert self._driver is not None
        code = self._driver.wait(_EVENT_S)
        output = self._output(str(self._num_drivers))
        if code != 130 or "interrupted" not in output:
            raise RunError(f"the interrupted driver ended with {code}: {output[-1000:]}")
        self._watch()
        return self.run.manifest(self.run.commits()[-1]).step

    def close(self) -> None:
        """End everything."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait()
        for _, act in self._later:
            with contextlib.suppress(OSError, RunError):
                act()
        self.hosts.close()


def write_job(folder: Path, run: Path) -> str:
    """The job with a copy of its code beside it: the witness is told by where the code lies."""
    folder.mkdir()
    code = shutil.copy(_HERE / "chaos_loop.py", folder / "points.py")
    path = folder / "job.yaml"
    path.write_text(_JOB.replace("PATH", str(code)).replace("RUN", str(run)))
    return str(path)


def write_witness(folder: Path, *, pause_s: float, write_s: float = 0.0) -> Path:
    """Where the reads are told of a job that `write_job` has put there, and the writes if they are to take a time."""
    witness = folder / "witness"
    for name in ("writing", "at_gate"):
        (witness / name).mkdir(parents=True)
    (witness / "pause_s").write_text(str(pause_s))
    (witness / "write_s").write_text(str(write_s))
    return witness


def judge(storm: Storm, step: int) -> dict[str, Any]:
    """Compare with the undisturbed run, audit, and ask the witness. `findings` is empty if all is well.

    Raises:
        RunError: the audit itself fails.
    """
    plain = write_job(storm.scratch / "plain", storm.scratch / "undisturbed")
    job = read_job(plain, [f"train.steps={step}"])
    undisturbed = _train_undisturbed(job)
    code = str(storm.scratch / "plain" / "points.py")
    command = [sys.executable, "-m", "planner.cli", "audit", str(storm.folder), "--code", code, "--json"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if not found.stdout:
        raise RunError(f"the audit failed: {found.stderr[-2000:]}")
    audit = json.loads(found.stdout)
    phases = [(phase["generation"], phase["first_step"], phase["end_step"]) for phase in audit["phases"]]
    samples = function_of(code, "dataset")()
    testimony = reconcile(storm.run, storm.scratch / "watched" / "witness", batch_sizes(job), samples, phases)
    findings = [*audit["findings"], *testimony.findings, *_differences(storm.run, undisturbed)]
    if found.returncode:
        findings.append(f"planner audit exits with {found.returncode}")
    findings += _verified(storm.folder)
    return {
        "steps": step,
        "generations": len(storm.run.generations()),
        "world_sizes": sorted(storm.sizes),
        "steps_done_again": audit["recomputed"],
        "lost": audit["lost"],
        "repeated": audit["repeated"],
        "weights_sha256": _digest(storm.run),
        "undisturbed_sha256": _digest(undisturbed),
        "reads_witnessed": testimony.reads,
        "steps_witnessed": testimony.steps,
        "findings": findings,
    }


def _verified(folder: Path) -> list[str]:
    """What `docs/verify_run.py` says against the run. It does not run the data set, so samples are not its business."""
    script = _HERE.parents[1] / "docs" / "verify_run.py"
    found = subprocess.run([sys.executable, str(script), str(folder)], check=False, capture_output=True, text=True)
    return [] if found.returncode == 3 else [f"verify_run.py exits with {found.returncode}: {found.stdout[-500:]}"]


def _train_undisturbed(job: Job) -> RunFolder:
    from planner.rehearsal.local_workers import LocalWorkers
    from planner.rehearsal.on_processes import rehearse, train_observed
    from planner.rehearsal.stages import SizePhase
    from planner.train.setup import Launch

    with LocalWorkers(1) as workers:
        launch = Launch(job=job, url=job.run_path)
        rehearse(workers, launch, [SizePhase(world_size=1, end_step=job.train.steps or 0)], train_observed)
    return RunFolder(Storage(job.run_path))


def _digest(run: RunFolder) -> str:
    """Over weights and optimizer of the newest commit."""
    from planner.store.records import joint_digest
    from planner.train.checkpoints.checkpoint import read_digests

    return joint_digest(read_digests(run.storage, run.manifest(run.commits()[-1])))


def _differences(run: RunFolder, undisturbed: RunFolder) -> list[str]:
    from planner.provenance.lineage import whole_lineage

    def steps(of: RunFolder) -> list[tuple[Any, ...]]:
        return [(r.step, r.cursor, r.checksum, r.loss, r.grad_norm, r.lr) for r in whole_lineage(of).steps]

    here, there = steps(run), steps(undisturbed)
    findings = [f"step {a[0]}: {a} here, {b} undisturbed" for a, b in zip(here, there, strict=False) if a != b][:3]
    if len(here) != len(there):
        findings.append(f"{len(here)} committed steps here, {len(there)} undisturbed")
    if _digest(run) != _digest(undisturbed):
        findings.append("the final weights and optimizer are not those of the undisturbed run")
    return findings


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--once", action="store_true", help="each kind of fault once, however long that takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=400.0, help="seconds without a step that are a hang")
    parser.add_argument("--write-s", type=float, default=1.0, help="seconds that each worker's file of a commit takes")
    parser.add_argument("--only", action="append", help="a fault's name; all by default")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--keep", action="store_true", help="leave the folder with run, witness and logs")
    arguments = parser.parse_args()
    # A shell starts a background job with SIGINT ignored. Drivers would inherit that, and could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _INSIDE not in os.environ:
        inside = isolation()
        environment = {**os.environ, _INSIDE: "isolated" if inside else "shared"}
        environment["PYTHONPATH"] = os.pathsep.join([str(_HERE.parents[1]), environment.get("PYTHONPATH", "")])
        os.execvpe((command := [*inside, sys.executable, *sys.argv])[0], command, environment)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    scratch = Path(tempfile.mkdtemp(prefix="plc-", dir="/tmp"))
    try:
        found = storm_in(scratch, arguments)
    finally:
        if arguments.keep:
            print(f"kept: {scratch}")
        else:
            subprocess.run(["umount", str(scratch / "disk")], check=False, capture_output=True)
            shutil.rmtree(scratch, ignore_errors=True)
    text = json.dumps(found, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text)
    if found["findings"]:
        raise SystemExit(1)


def storm_in(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One storm, from the first node to the verdict."""
    isolated = os.environ[_INSIDE] == "isolated"
    disk = _disk(scratch) if isolated else None
    has = {"network": isolated, "disk": disk is not None, "": True}
    kinds = [f for f in FAULTS if has[f.needs] and (not arguments.only or f.name in arguments.only)]
    storm = Storm(
        scratch,
        disk=disk,
        isolated=isolated,
        patience_s=arguments.patience,
        write_s=arguments.write_s,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    began_s = time.monotonic()
    try:
        dice = random.Random(arguments.seed)
        faults = storm.rage_once(dice, kinds) if arguments.once else storm.rage(60 * arguments.minutes, dice, kinds)
        minutes = (time.monotonic() - began_s) / 60
        step = storm.calm()
    finally:
        storm.close()
    verdict = judge(storm, step)
    verdict["findings"] += storm.findings
    return {
        "seed": arguments.seed,
        "minutes": round(minutes, 1),
        "faults": dict(sorted(faults.items())),
        "hit_a_write_in_flight": {name: storm.hits[name] for name in faults if name.endswith("in a background write")},
        "hit_the_memory": {name: storm.hits[name] for name in faults if name in MEMORY_FAULTS},
        "died_in_hand_overs": dict(sorted(storm.phases.items())),
        "resumes": {source: storm.resumes[source] for source in ("memory", "storage")},
        "not_tried_here": [f.name for f in FAULTS if not has[f.needs]],
        "driver_ends": dict(storm.driver_ends),
        "longest_pause_s": round(storm.longest_pause[0], 1),
        "longest_pause_after": storm.longest_pause[1],
        **verdict,
    }


def _disk(scratch: Path) -> Path | None:
    """A file system in a file: it can be full or frozen without an effect on anything else."""
    image, disk = scratch / "disk.img", scratch / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_MIB << 20)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(disk)]):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
    return disk


if __name__ == "__main__":
    main()
