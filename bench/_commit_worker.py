"""One generation in one worker, as `bench/commit.py` measures it: real training steps with commits in between.

`MeasuredCommits` stands in the place of planner's `Commits` and does the same. It adds clocks around the calls for
which training stands still, and decides at which step to commit. It sees the same calls on every worker, so all
workers do the same.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from _commit_0_1_0 import commit_as_0_1_0
from _stranger import Stranger

from planner.job import Job
from planner.train import lifecycle
from planner.train.checkpoints import tensor_writer
from planner.train.collectives import shard_of
from planner.train.commits import Commits, LandedCommit
from planner.train.generation import make_batch_of, make_state
from planner.train.hooks import Hooks
from planner.train.lifecycle import begin, looping
from planner.train.objectives import make_objective
from planner.train.optimizer_step import accumulate
from planner.train.reference.frozen import UniformReference
from planner.train.setup import Launch
from planner.train.world import cpu_device

# A process's first steps allocate the optimizer's state and learn FSDP's order.
_WARM_UP = 2
# Steps between two commits: the copy is timed at one, the next commit begins after the last.
_COPY_AT, _QUIET = 2, 3
_BESIDE_STRANGER = 12


@dataclass(frozen=True, kw_only=True)
class Script:
    """What one generation does."""

    limits: tuple[float, ...]
    """bytes per second of all workers' files together, for each commit. 0 means no limit. The first one is of the
    commit that makes the buffers"""
    repeats_0_1_0: int
    """commits in the way of planner 0.1.0, after all others"""
    is_pinned: bool
    """whether training runs on one core and the thread that writes on another"""


@dataclass(kw_only=True)
class Seen:
    """What one worker measured. Lists have one entry for each commit, in seconds or bytes."""

    shard_bytes: int = 0
    stall_s: list[float] = field(default_factory=list)
    """training stood still, in all calls that belong to the commit"""
    begin_s: list[float] = field(default_factory=list)
    """the part of it before the step was held"""
    write_s: list[float] = field(default_factory=list)
    """from the begin of the commit until it was durable"""
    copy_s: list[float] = field(default_factory=list)
    """a copy of the same bytes into the same buffers"""
    stall_0_1_0_s: list[float] = field(default_factory=list)
    quiet_step_s: list[float] = field(default_factory=list)
    beside_step_s: dict[int, list[float]] = field(default_factory=dict)
    """number of the commit -> steps that passed while the worker's thread wrote its files"""
    beside_stranger_s: list[float] = field(default_factory=list)
    """steps that passed while another process hashed and wrote as many bytes. Empty if workers share cores"""
    quiet_peak_bytes: int = 0
    """most resident memory in steps before the first commit"""
    commit_peak_bytes: list[int] = field(default_factory=list)


class MeasuredCommits(Commits):
    """Planner's commits, with clocks, at the moments of a script."""

    def __init__(self, script: Script, seen: Seen, writer_core: int | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._script, self._seen, self._writer_core = script, seen, writer_core
        self._left_s = 0.0
        self._was_writing = False
        self._quiet = -_WARM_UP
        self._stall_s = 0.0
        self._stranger: Stranger | None = None

    # -- the pace. Only rank 0's answer counts

    def due(self, _step: int, *, is_writing: bool) -> bool:
        """Whether the script has a commit now."""
        return not is_writing and self._quiet >= _QUIET - 1 and len(self._seen.stall_s) < len(self._script.limits)

    def did_step(self, _seconds: float) -> None:
        pass

    def did_hold(self, step: int) -> None:
        pass

    def did_land(self, paused_s: float, write_s: float) -> None:
        pass

    # -- the calls of the loop

    @property
    def is_over(self) -> bool:
        """Whether the script is done."""
        return self._has_landed_all and self._is_stranger_over and self._num_0_1_0 >= self._script.repeats_0_1_0

    @property
    def _num_0_1_0(self) -> int:
        return len(self._seen.stall_0_1_0_s)

    @property
    def _is_stranger_over(self) -> bool:
        return self._writer_core is None or len(self._seen.beside_stranger_s) >= _BESIDE_STRANGER

    @property
    def _has_landed_all(self) -> bool:
        return len(self._seen.copy_s) >= len(self._script.limits)

    def advance(self, num_written: int, *, is_sealed: bool) -> LandedCommit | None:
        entered_s = time.perf_counter()
        self._note_step(entered_s - self._left_s)
        landed = super().advance(num_written, is_sealed=is_sealed)
        self._stall_s += time.perf_counter() - entered_s
        self._pin_writer()
        if landed is not None:
            self._seen.stall_s.append(self._stall_s)
            self._seen.write_s.append(landed.write_s)
            self._seen.commit_peak_bytes.append(_peak_bytes())
            self._quiet = 0
        elif not self.is_in_flight:
            self._between()
        self._was_writing = self._is_writing
        self._left_s = time.perf_counter()
        return landed

    def begin(self, step: int, cursor: int, *, is_last: bool) -> LandedCommit | None:
        number = len(self._seen.stall_s)
        if number == 0:
            self._seen.quiet_peak_bytes = _peak_bytes()
        _limit.bytes_per_s = self._script.limits[number] / self._world.world_size
        _forget_peak()
        entered_s = time.perf_counter()
        landed = super().begin(step, cursor, is_last=is_last)
        self._stall_s = time.perf_counter() - entered_s
        self._seen.begin_s.append(self._stall_s)
        self._pin_writer()
        self._was_writing = self._is_writing
        self._left_s = time.perf_counter()
        return landed

    # -- between two calls

    @property
    def _is_writing(self) -> bool:
        return self._flight is not None and not self._flight.writing.is_done

    def _note_step(self, seconds: float) -> None:
        """Note the time from the end of the last call to now: one step."""
        if self._is_writing and self._was_writing:
            self._seen.beside_step_s.setdefault(len(self._seen.stall_s), []).append(seconds)
        elif self._stranger is not None:
            self._seen.beside_stranger_s.append(seconds)
        elif not self.is_in_flight and self._quiet > 0:
            self._seen.quiet_step_s.append(seconds)

    def _between(self) -> None:
        """A step without a commit in flight."""
        self._quiet += 1
        if self._quiet == 1:
            _forget_peak()
        if self._quiet == _COPY_AT and self._seen.stall_s and not self._has_landed_all:
            self._seen.copy_s.append(self._time_of_copy())
        elif self._has_landed_all and not self._is_stranger_over:
            if self._stranger is None:
                folder = Path(self._run.storage.path(""))
                self._stranger = Stranger(self._seen.shard_bytes, folder / "stranger", self._writer_core)
        elif self._has_landed_all and not self.is_over:
            if self._stranger is not None:
                self._stranger.close()
                self._stranger = None
            self._seen.stall_0_1_0_s.append(
                commit_as_0_1_0(self._world, self._run.storage, f"0.1.0-{self._num_0_1_0}", self._state.tensors())
            )

    def _time_of_copy(self) -> float:
        """Seconds of a plain copy of this worker's shards into the buffers, which the first commit has touched."""
        shards = {name: shard_of(tensor) for name, tensor in self._state.tensors().items()}
        self._seen.shard_bytes = sum(shard.nbytes for shard in shards.values())
        buffers = self._memory.copies._places[0]._buffers  # noqa: SLF001  # no other copy must be made
        began_s = time.perf_counter()
        for name, shard in shards.items():
            buffers[name].copy_(shard)
        return time.perf_counter() - began_s

    def _pin_writer(self) -> None:
        """Keep the thread that writes on a core of its own."""
        for thread in threading.enumerate() if self._writer_core is not None else ():
            if thread.name == "planner-commit" and thread.native_id is not None:
                _pin(thread.native_id, self._writer_core)


def measured(rank: int, job: Job, url: str, script: Script) -> Seen:
    """Run in every worker: one generation by the script."""
    del rank
    seen, found = Seen(), []
    cores = sorted(os.sched_getaffinity(0))
    is_pinned = script.is_pinned and len(cores) > 1
    if is_pinned:
        _pin(0, cores[0])

    def commits(**arguments: Any) -> MeasuredCommits:
        found.append(MeasuredCommits(script, seen, cores[1] if is_pinned else None, **arguments))
        return found[-1]

    def pace(*_: object) -> MeasuredCommits:
        return found[-1]

    generation = begin(Launch(job=job, url=url), cpu_device, Hooks())
    state, objective = make_state(generation), make_objective(job.objective, UniformReference())
    with (
        _limited_files(),
        mock.patch.object(lifecycle, "Commits", commits),
        mock.patch.object(lifecycle, "_make_pace", pace),
        looping(generation, state, lambda _note: (objective, lifecycle.StepFlops()), make_batch_of(job)) as loop,
        closing(loop.steps()) as steps,
    ):
        for step in steps:
            if found[-1].is_over:
                break
            accumulate(state.model, objective, step)
    return seen


def _pin(thread_id: int, core: int) -> None:
    try:
        os.sched_setaffinity(thread_id, {core})
    except ProcessLookupError:  # the thread has ended
        return


# -- memory


def _forget_peak() -> None:
    """Let `VmHWM` begin again at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """The most resident memory since `_forget_peak`. Files are written, not mapped, so the page cache is not in it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


# -- slow storage


class _Limit:
    """A token bucket for this worker's checkpoint files. It gets an equal share of the limit for all workers."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        self._free_s = 0.0

    def take(self, num_bytes: int) -> None:
        """Wait until so many bytes may be written."""
        if self.bytes_per_s:
            self._free_s = max(self._free_s, time.monotonic()) + num_bytes / self.bytes_per_s
            time.sleep(max(0.0, self._free_s - time.monotonic()))


_limit = _Limit()


class _LimitedFile:
    """A file that takes bytes at the limit's rate."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def write(self, piece: Any) -> int:
        _limit.take(len(piece))
        return int(self._raw.write(piece))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


@contextmanager
def _limited_files() -> Iterator[None]:
    hashed = tensor_writer._HashedStream  # noqa: SLF001  # its place is patched below

    def limited(raw: Any, *arguments: Any, **options: Any) -> Any:
        return hashed(_LimitedFile(raw), *arguments, **options)

    with mock.patch.object(tensor_writer, "_HashedStream", limited):
        yield
