"""Holds the first background write of each Ray worker until a file says so, and tells by files how far they are."""

import threading
import time
from pathlib import Path

from planner.dispatch.worker import worker_hooks

_POLL_S = 0.02
ONLY_COMMIT = 20
"""the step that is committed while training goes on. Another commit would wait for it, and so would training"""


def held_hooks(folder, launch):
    """The usual hooks of a worker, whose writes wait for the file `go` in `folder` once they have begun.

    `writing` is there when a write has begun, `waited_for` when training waits for it.
    """
    from planner.train.checkpoints.tensor_writer import _HashedStream
    from planner.train.commits import Commits
    from planner.train.pace import EverySteps

    place, write, finish = Path(folder), _HashedStream.write, Commits.finish

    def held_write(self, content):
        if threading.current_thread().name == "planner-commit" and not (place / "go").exists():
            (place / "writing").touch()
            while not (place / "go").exists():
                time.sleep(_POLL_S)
                self._on_piece()
        return write(self, content)

    def told_finish(self):
        if self.is_in_flight:
            (place / "waited_for").touch()
        return finish(self)

    if write.__name__ != "held_write":  # this process may live through a resize
        _HashedStream.write, Commits.finish = held_write, told_finish
        EverySteps.due = lambda _pace, step, *, is_writing: step == ONLY_COMMIT and not is_writing
    return worker_hooks(launch)
