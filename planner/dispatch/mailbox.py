"""Messages from the controller to a worker that trains, and keys for messages between driver and controller.

Each worker process has one inbox. Ray runs its functions in the worker's main thread (`actor.execute`), while training
has its own thread. The driver and the controller exchange messages in the cluster's key-value store.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from planner.events.event import Event

_stop = threading.Event()
_must_commit = threading.Event()
_cut = threading.Event()
_release = threading.Event()
_lock = threading.Lock()
_events: list[Event] = []

PARKED = "planner_parked"
"""metric key of a report: this worker has committed everything, or copied it into memory, and waits"""


def _key(topic: str) -> Callable[[str], str]:
    """A function: id of a launch -> its key for this topic in the cluster's key-value store."""
    return lambda launch_id: f"{topic}-{launch_id}"


end_request_key = _key("end")
"""under which the driver of a launch requests the end of the run"""
end_reply_key = _key("ended")
"""under which the controller replies that all workers have committed, or that none has to"""
refusal_key = _key("refusal")
"""under which the workers publish why they refuse to continue"""
verdict_key = _key("verdict")
"""under which the controller publishes why it ends the run with an error"""
state_key = _key("state")
"""under which the controller publishes its status while no group trains"""
status_key = _key("status")
"""under which the controller publishes its live status (`planner.store.run_status`), as JSON"""
keepers_key = _key("keepers")
"""under which the controller publishes where the keepers of the launch are (`planner.dispatch.keepers`)"""
collectives_key = _key("collectives")
"""under which the controller publishes for how many seconds the next group's first collectives may wait"""
caps_key = _key("caps")
"""under which the controller publishes the caps on micro-batches that the next group has to take"""
heartbeat_key = _key("heartbeat")
"""under which the controller publishes its heartbeat (`planner.dispatch.controller_heartbeat`)"""


class UnwindTraining(BaseException):
    """Unwinds the training thread of a worker whose process is kept. `except Exception` does not catch it."""


def request_stop(in_memory: bool = False, cut: bool = False) -> None:  # Ray's `execute` passes them by position
    """Ask this worker to stop at the next step that all workers agree on, commit, and park.

    With `in_memory`, the last step may stay in the keepers' memory. A request without it overrides one with it, in any
    order. With `cut`, workers abandon the step in flight at the next round that all of them agree on, if there is one.
    A request with it overrides one without it, in any order.
    """
    if not in_memory:
        _must_commit.set()  # first: who sees the stop sees this, too
    _stop.set()
    if cut:
        _cut.set()  # last: who sees this sees the stop, too


def stop_requested() -> bool:
    """Whether this worker was asked to stop."""
    return _stop.is_set()


def cut_requested() -> bool:
    """Whether this worker was asked to stop without finishing the step in flight."""
    return _cut.is_set()


def may_hold() -> bool:
    """Whether a stop that this worker knows of may leave its last step in memory. True while it knows of none."""
    return not _must_commit.is_set()


def post_event(event: Event) -> None:
    """Queue an event for the run's ledger."""
    with _lock:
        _events.append(event)


def take_events() -> list[Event]:
    """Take out the events that are queued, oldest first."""
    with _lock:
        found = _events.copy()
        _events.clear()
    return found


def current_location() -> str:
    """Where this worker's training thread is in planner's code, and in the code that planner called.

    Used to diagnose a group that makes no progress: it shows what the thread waits for, a disk or another worker.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  # documented, and named so by Python
        ours = next((f for f in _outwards(frame) if _PACKAGE in Path(f.f_code.co_filename).parents), None)
        if ident == threading.get_ident() or ours is None or names.get(ident) in _OTHER_THREADS:
            continue
        within = "" if ours is frame else f", in {_place(frame)}"
        found.append(f"{_place(ours)}{within}")
    return " and ".join(sorted(found)) or "not in training"


_PACKAGE = Path(__file__).parents[1]
_OTHER_THREADS = {"planner-remind"}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    """The function, file and line of a frame."""
    code = frame.f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"


def park() -> None:
    """Wait until the process ends or `release` is called. Never returns.

    Ray would take a return for a finished job, and an error for a failed one.

    Raises:
        UnwindTraining: the process continues with the next generation.
    """
    _release.wait()
    raise UnwindTraining


def release() -> None:
    """Make `park` raise `UnwindTraining`."""
    _release.set()


def reset() -> None:
    """Clear stop requests, releases and events of the last generation."""
    _stop.clear()
    _must_commit.clear()
    _cut.clear()
    _release.clear()
    take_events()
