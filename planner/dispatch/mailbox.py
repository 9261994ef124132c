"""What the controller says to a worker while it trains, and the driver to the controller. Plain Python.

A worker process has one inbox. The driver and the controller leave each other words in the cluster's key-value store.

Ray runs these functions in the worker's main thread (`actor.execute`), while training has a thread of its own.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_stop = threading.Event()
_release = threading.Event()
_lock = threading.Lock()
_messages: list[str] = []

PARKED = "planner_parked"
"""key of the report that says: all is committed, and this worker waits"""
_POLL_S = 0.2


def end_request_key(launch_id: str) -> str:
    """Where the driver of a launch says that it wants to end the run."""
    return f"end-{launch_id}"


def end_reply_key(launch_id: str) -> str:
    """Where the controller answers that all workers have committed, or that there is nothing to wait for."""
    return f"ended-{launch_id}"


def state_key(launch_id: str) -> str:
    """Where the controller says what it is about while no step is done."""
    return f"state-{launch_id}"


def heartbeat_key(launch_id: str) -> str:
    """Where the controller shows that it lives: see `planner.dispatch.heartbeat`."""
    return f"heartbeat-{launch_id}"


class Released(BaseException):
    """Unwinds the training thread of a worker whose process lives on. No `except Exception` swallows it."""


def request_stop() -> None:
    """Stop at the next step that all workers agree on, commit, and park."""
    _stop.set()


def stop_requested() -> bool:
    """Whether somebody wants this worker to stop."""
    return _stop.is_set()


def post_note(message: str) -> None:
    """Leave words for the run's ledger."""
    with _lock:
        _messages.append(message)


def messages() -> list[str]:
    """The words that have come since the last call."""
    with _lock:
        found = _messages.copy()
        _messages.clear()
    return found


def current_location() -> str:
    """Where this worker's training is: in our code, and below it. For a group that has fallen silent.

    Asked in the main thread, it sees what the training thread waits for, be it a disk or another worker.
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
    """The frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"


def park() -> None:
    """Wait for the end of the process, or for `release`.

    Never returns: all workers returning would mean that the job is done, and raising an error that it failed.

    Raises:
        Released: the process goes on with the next generation.
    """
    while not _release.wait(_POLL_S):
        pass
    raise Released


def release() -> None:
    """Unwind a parked worker."""
    _release.set()


def reset() -> None:
    """Forget the last generation."""
    _stop.clear()
    _release.clear()
    messages()
