"""What is on record about a tracker in the run's folder: its own name of the run, and the last step that it has.

tracking/<kind>-<digest>.json     the record. The digest is that of the settings that say where rows go
tracking/<kind>-<digest>.lock     held by the process that sends, so that two processes never send one step twice
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from planner.base.format_versions import STORED
from planner.base.json_text import json_object
from planner.base.permissions import opener_within
from planner.errors import RunError, StoreError
from planner.job.tracking import Tracking
from planner.store.records import canonical_json, require_format
from planner.store.storage import Storage

# They name a run for people, and a change of them continues the same run.
_COSMETIC = {"name", "group", "tags"}


class AnotherSender(RunError):
    """Another process sends this run's rows to the same tracker."""


@dataclass(frozen=True, kw_only=True)
class SentState:
    """The record of one tracker."""

    tracker_id: str = ""
    """the tracker's own name of its run, or empty"""
    step: int = -1
    """the last step that was sent, or -1"""


def state_name(section: Tracking) -> str:
    """The name of a tracker's record, such as `wandb-0123abcd`. Sections that send to one place share it."""
    place = section.model_dump(mode="json", exclude=_COSMETIC)
    return f"{section.kind}-{sha256(canonical_json(place).encode()).hexdigest()[:8]}"


def read_state(storage: Storage, name: str) -> SentState:
    """The record of that name. The default values if there is none, or if it is torn.

    Raises:
        NewerFormat: another version of planner wrote it.
        StoreError: the store cannot be reached.
    """
    where = f"tracking/{name}.json"
    if not storage.exists(where):
        return SentState()
    try:
        value = json_object(storage.read(where))
        found = value.pop("format", None)
        state = SentState(tracker_id=str(value["tracker_id"]), step=int(value["step"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return SentState()
    require_format(found, "tracking", where)
    return state


def write_state(storage: Storage, name: str, kind: str, state: SentState) -> None:
    """Write the record of that name.

    Raises:
        StoreError: it cannot be written.
    """
    value = {"format": STORED["tracking"], "kind": kind, **asdict(state)}
    storage.write(f"tracking/{name}.json", canonical_json(value).encode())


@contextlib.contextmanager
def sender_lock(storage: Storage, name: str) -> Iterator[None]:
    """Hold the right to send to a tracker. For a run at a URL, only processes on this machine are kept away.

    Raises:
        AnotherSender: another process holds it.
        StoreError: the lock cannot be made.
    """
    descriptor = _opened_lock(storage, name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AnotherSender(
                f"{storage.url}: another process sends this run to {name.rpartition('-')[0]} now. Wait for its end: a "
                "driver sends until its run ends"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _opened_lock(storage: Storage, name: str) -> int:
    try:
        if storage.is_local:
            storage.make_folder("tracking")
            root = Path(storage.path(""))
            return opener_within(root)(str(root / "tracking" / f"{name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        digest = sha256(f"{storage.url} {name}".encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"planner-{os.getuid()}-{digest}.lock"
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"{storage.url}: cannot make tracking/{name}.lock: {error.strerror}") from error
