"""Ray workers whose background writes or starts wait at a gate, and who tell by files how far they are."""

import os
import threading
import time
from pathlib import Path

from planner.dispatch.worker import worker_hooks

_POLL_S = 0.02
ONLY_COMMIT = 20
"""the step that `only_commit` commits in mid-run. Another commit would wait for it, and so would training"""


class Gate:
    """A file that workers wait for the end of. Any process may close and open it."""

    def __init__(self, folder, name="closed"):
        self._file = Path(folder) / name

    def close(self):
        self._file.touch()

    def open(self):
        self._file.unlink(missing_ok=True)

    @property
    def is_closed(self):
        return self._file.exists()

    def await_open(self, meanwhile=lambda: None):
        while self.is_closed:
            time.sleep(_POLL_S)
            meanwhile()


def held_hooks(folder, launch):
    """The usual hooks of a worker, whose background writes wait in `folder` while `Gate(folder)` is closed.

    `writing` is there when one waits, `waited_for` when training waits for it.
    """
    from planner.train.checkpoints.tensor_writer import _HashedStream
    from planner.train.commits import Commits

    place, gate, write, finish = Path(folder), Gate(folder), _HashedStream.write, Commits.finish

    def held_write(self, content):
        if threading.current_thread().name == "planner-commit" and gate.is_closed:
            (place / "writing").touch()
            gate.await_open(self._on_piece)
        return write(self, content)

    def told_finish(self):
        if self.is_in_flight and gate.is_closed:
            (place / "waited_for").touch()
        return finish(self)

    if write.__name__ != "held_write":  # this process may live through a resize
        _HashedStream.write, Commits.finish = held_write, told_finish
    return worker_hooks(launch)


def only_commit(folder, launch):
    """`held_hooks` of a run that commits only one step before its end."""
    from planner.train.pace import EverySteps

    EverySteps.due = lambda _pace, step, *, is_writing: step == ONLY_COMMIT and not is_writing
    return held_hooks(folder, launch)


def held_start(folder, launch):
    """The usual hooks of a worker that waits before it trains while `Gate(folder)` is closed.

    In `starting`, a folder, is a file for each worker that waits, named by its process id.
    """
    gate, starting = Gate(folder), Path(folder) / "starting"
    if gate.is_closed:
        starting.mkdir(exist_ok=True)
        (starting / str(os.getpid())).touch()
        gate.await_open()
    return worker_hooks(launch)
