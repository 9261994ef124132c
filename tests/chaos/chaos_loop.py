"""The job of the chaos runs: a small network whose data set tells a witness of every read.

The witness is the folder `witness` beside this file, if there is one: every process that reads writes a file of its
own there, apart from everything that planner writes. A copy of this file without that folder is silent. The file
`witness/pause_s` says how long a read takes, so that a step takes as long as its workers' shares are large.

The file `witness/write_s` says how long each file of a commit takes. While a worker writes one, `witness/writing/PID`
has the file's path. A worker that is killed leaves it there.

The file `witness/gate` names a phase of a hand-over in memory. A worker that comes to it says so in
`witness/at_gate/PID`, and waits there for some seconds, or until there is no such gate any more.

While there is a file `witness/short`, the worker takes all room of its node's keeper.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.keeper.client import KeeperClient
from planner.keeper.copies import CopyKey
from planner.keeper.errors import KeeperError, KeeperFull
from planner.own import Run
from planner.train import lifecycle
from planner.train.checkpoints import tensor_writer
from planner.train.memory_copies import MemoryCopies

WITNESS = Path(__file__).parent / "witness"
_PAUSE = WITNESS / "pause_s"
PAUSE_S = float(_PAUSE.read_text()) if _PAUSE.exists() else 0.0
_WRITE = WITNESS / "write_s"
WRITE_S = float(_WRITE.read_text()) if _WRITE.exists() else 0.0
GATE, AT_GATE, SHORT = WITNESS / "gate", WITNESS / "at_gate", WITNESS / "short"
_GATE_S = 5.0
# Later than any generation, so that planner does not free it.
_FILLED_GENERATION, _FILLED_BITS = 10**9, 40
# A process that lives through a resize imports this file again.
_CREATE_STREAM = getattr(tensor_writer, "chaos_below", tensor_writer._PrivateFiles.create_stream)
_KEEP = getattr(tensor_writer, "chaos_keep", MemoryCopies.keep)
_LOADED = getattr(tensor_writer, "chaos_loaded", lifecycle._loaded)


class Witness:
    """One line for every read, and one for every generation that this process is a worker of."""

    def __init__(self) -> None:
        self._file = -1

    def write(self, line: str) -> None:
        """Written at once and in one piece: a process that is killed has no time for it."""
        if not WITNESS.is_dir():
            return
        if self._file < 0:
            path = WITNESS / f"{os.getpid()}-{time.time_ns()}.log"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, f"{line}\n".encode())


WITNESSED = Witness()


@contextmanager
def slow_stream(files: Any, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
    """A worker's file of a commit, which takes `WRITE_S` and is announced meanwhile."""
    with _CREATE_STREAM(files, path, mode) as stream:
        if threading.current_thread() is threading.main_thread() or not str(path).endswith(".distcp"):
            yield stream
            return
        marker = WITNESS / "writing" / str(os.getpid())
        hidden = marker.with_suffix(".new")
        hidden.write_text(str(path))
        hidden.rename(marker)
        stream.write = partial(_slow_write, stream, stream.write, time.monotonic() + WRITE_S)
        try:
            yield stream
        finally:
            marker.unlink(missing_ok=True)


def _slow_write(stream: Any, write: Callable[[Any], int], until_s: float, content: Any) -> int:
    """Write half of a file's first piece, and the rest when its time is over."""
    view = memoryview(content).cast("B")
    at = len(view) // 2 if time.monotonic() < until_s else 0
    if at:
        write(view[:at])
        stream.flush()
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.05))
        stream._on_piece()
    write(view[at:])
    return len(view)


if WRITE_S:
    tensor_writer.chaos_below = _CREATE_STREAM
    tensor_writer._PrivateFiles.create_stream = slow_stream


def pass_gate(phase: str) -> None:
    """Say that this worker is in a phase, and wait there, if the storm asks for that."""
    until_s = time.monotonic() + _GATE_S
    marker = AT_GATE / str(os.getpid())
    while _asked() == phase and time.monotonic() < until_s:
        marker.write_text(phase)
        time.sleep(0.02)
    marker.unlink(missing_ok=True)


def _asked() -> str:
    try:
        return GATE.read_text()
    except OSError:
        return ""


def gated_keep(memory: MemoryCopies, step: int, cursor: int) -> bool:
    """The last step before a stop goes into memory: `copying`, and when that is done on all workers `copied`."""
    pass_gate("copying")
    is_held = _KEEP(memory, step, cursor)
    if is_held:
        pass_gate("copied")
    return is_held


def witnessed_load(generation: Any, state: Any) -> Any:
    """The next group loads what is in memory: `loading`. Then the generation has its number, and samples are read."""
    if generation.claim.held is not None:
        pass_gate("loading")
    start, world = _LOADED(generation, state), generation.world
    memory = "alone" if generation.keepers is None or generation.keepers.own is None else "kept"
    WITNESSED.write(f"generation {start.generation} rank {world.rank} of {world.world_size} {memory}")
    return start


if WITNESS.is_dir():
    tensor_writer.chaos_keep, tensor_writer.chaos_loaded = _KEEP, _LOADED
    MemoryCopies.keep = gated_keep
    lifecycle._loaded = witnessed_load


class RoomTaker:
    """Takes all room of this node's keeper while the storm wants that, so that it refuses any other copy.

    Nothing is written there, so that it takes no memory.
    """

    def __init__(self, run: Run) -> None:
        self._keepers = run._generation.keepers
        # Another process may have taken it, and died.
        self._has_taken: bool | None = None if WITNESS.is_dir() else False

    def look(self) -> None:
        """Take the room, or give it back."""
        if SHORT.exists() == self._has_taken or self._keepers is None or self._keepers.own is None:
            return
        self._has_taken = SHORT.exists()
        try:
            with KeeperClient(self._keepers.own, self._keepers.secret) as client:
                for bits in range(_FILLED_BITS, -1, -1):
                    try:
                        client.room(_filled(bits), 2**bits if self._has_taken else 0)
                    except KeeperFull:
                        continue
        except KeeperError:  # it was killed
            return


def _filled(bits: int) -> CopyKey:
    return CopyKey(generation=_FILLED_GENERATION, rank=0, slot=bits)


class Points:
    """Row `i` is the same whenever it is asked for."""

    fingerprint = "chaos: points of 2026"

    def __len__(self) -> int:
        return 509  # prime: no epoch ends with a batch

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        WITNESSED.write(f"read {i}")
        time.sleep(PAUSE_S)
        return torch.randn(8, generator=torch.Generator().manual_seed(i)) + i % 3, i % 3


def dataset() -> Points:
    """What to train on."""
    return Points()


def train(run: Run) -> None:
    """As in jobs/own_loop.py."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    run.shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    taker = RoomTaker(run)
    taker.look()
    for step in run.steps(model, optimizer):
        taker.look()
        for batch in step.micro_batches():
            points, kinds = (part.to(run.device) for part in batch)
            step.backward(functional.cross_entropy(model(points), kinds, reduction="sum"))
