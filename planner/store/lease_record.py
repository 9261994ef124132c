"""The content of a lease: which process drives a run, and whether this machine can see that it is alive."""

import os
import socket
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field

from planner.base.format_versions import STORED
from planner.errors import NewerFormat, StoreError
from planner.store.records import Count, Sealed, unseal, unseal_if_whole


class LeaseRecord(Sealed):
    """A driver's lease: its process, and how often it has renewed the lease."""

    stored_as: ClassVar[str] = "drivers"

    format: int = STORED["drivers"]
    launch: str
    host: str
    place: str
    """the boot, the pid namespace and the user in which `pid` is valid, or empty if unknown"""
    pid: int = Field(ge=1)
    started: str
    """the start of the process in ticks since the boot, because a later process may get the same pid"""
    since_s: float = Field(ge=0, le=1e11)
    """seconds since the epoch by its own clock: for people only"""
    beat_s: float = Field(gt=0, le=60)
    """seconds between two renewals"""
    beat: Count = 0
    """renewals so far"""
    held: bool = True
    """false once the driver has released it"""

    @property
    def description(self) -> str:
        """Pid, host and start time, for people."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since_s))
        return f"another driver (pid {self.pid} on {self.host}, since {since})"

    def is_near(self, other: "LeaseRecord") -> bool:
        """Whether the other process can check by pid that this one is alive."""
        return bool(self.place) and self.place == other.place

    @property
    def is_running(self) -> bool:
        """Whether the process is alive. Only valid where `is_near` is true."""
        return _start_of(self.pid) == self.started


class FoundLease(NamedTuple):
    """A lease file in the run's folder."""

    number: int
    content: bytes

    @property
    def holder(self) -> LeaseRecord | None:
        """The driver. None if the lease is torn or of another version. Then only watching shows if it is renewed."""
        return unseal_if_whole(self.content, LeaseRecord, lease_name(self.number))

    @property
    def refusal(self) -> str:
        """Why the lease cannot be read if another version of planner wrote it, else an empty text."""
        try:
            unseal(self.content, LeaseRecord, lease_name(self.number))
        except NewerFormat as error:
            return str(error)
        except StoreError:
            pass
        return ""

    @property
    def is_released(self) -> bool:
        """Whether its driver has released it."""
        return self.holder is not None and not self.holder.held

    @property
    def description(self) -> str:
        """The driver that holds it, for people."""
        return self.holder.description if self.holder else f"a driver whose {lease_name(self.number)} cannot be read"


def lease_name(number: int) -> str:
    """The path of a lease within the run's folder."""
    return f"drivers/{number:06d}.json"


def this_driver(launch_id: str, beat_s: float) -> LeaseRecord:
    """Return a new lease of this process, renewed every `beat_s` seconds."""
    return LeaseRecord(
        launch=launch_id,
        host=socket.gethostname(),
        place=_place(),
        pid=os.getpid(),
        started=_start_of(os.getpid()),
        since_s=time.time(),
        beat_s=beat_s,
    )


def _place() -> str:
    """Return `LeaseRecord.place`, empty without /proc. The uid is in it, as /proc may hide other users' processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"boot {boot} {Path('/proc/self/ns/pid').readlink()} uid {os.getuid()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return `LeaseRecord.started` (proc(5), stat, field 22). Empty if the process is dead or a zombie."""
    try:
        # The process's name is in parentheses, and may have parentheses and blanks of its own.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in {"Z", "X"} else fields[18]
