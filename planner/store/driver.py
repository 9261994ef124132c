"""What a lease says: who drives a run, and whether that process is alive, as far as this machine can tell."""

import os
import socket
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field

from planner.base.format_versions import STORED
from planner.errors import NewerFormat, StoreError
from planner.store.records import Count, Sealed, unseal


class DriverLease(Sealed):
    """A driver's lease: which process it is, and that it has beaten `beat` times."""

    stored_as: ClassVar[str] = "drivers"

    format: int = STORED["drivers"]
    launch: str
    host: str
    place: str
    """the boot, the pid namespace and the user within which `pid` means something; empty if unknown"""
    pid: int = Field(ge=1)
    started: str
    """the process's start in ticks since the boot: another process may get the same pid"""
    since_s: float = Field(ge=0, le=1e11)
    """by its own clock; shown, and compared with nothing"""
    beat_s: float = Field(gt=0, le=60)
    """it writes this often"""
    beat: Count = 0
    held: bool = True
    """false once it is given back"""

    @property
    def description(self) -> str:
        """The process, for people."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since_s))
        return f"another driver (pid {self.pid} on {self.host}, since {since})"

    def is_near(self, other: "DriverLease") -> bool:
        """Whether the other can tell by the pid alone if this one is alive."""
        return bool(self.place) and self.place == other.place

    @property
    def is_running(self) -> bool:
        """Whether the process is alive. Ask only where `is_near` says so."""
        return _start_of(self.pid) == self.started


class FoundLease(NamedTuple):
    """A lease as it lies in the run's folder."""

    number: int
    content: bytes

    @property
    def holder(self) -> DriverLease | None:
        """The driver; none if the lease is torn or of another version. Then only watching shows if it is renewed."""
        try:
            value: DriverLease = unseal(self.content, DriverLease, lease_name(self.number))
        except StoreError:
            return None
        return value

    @property
    def refusal(self) -> str:
        """Why the lease is not read, if another version of planner wrote it; else empty."""
        try:
            unseal(self.content, DriverLease, lease_name(self.number))
        except NewerFormat as error:
            return str(error)
        except StoreError:
            pass
        return ""

    @property
    def is_released(self) -> bool:
        """Whether its driver has given it back."""
        return self.holder is not None and not self.holder.held

    @property
    def description(self) -> str:
        """Its driver, for people."""
        return self.holder.description if self.holder else f"a driver whose {lease_name(self.number)} cannot be read"


def lease_name(number: int) -> str:
    """Where the lease of that number lies."""
    return f"drivers/{number:06d}.json"


def this_driver(launch_id: str, beat_s: float) -> DriverLease:
    """This process, as its lease names it."""
    return DriverLease(
        launch=launch_id,
        host=socket.gethostname(),
        place=_place(),
        pid=os.getpid(),
        started=_start_of(os.getpid()),
        since_s=time.time(),
        beat_s=beat_s,
    )


def _place() -> str:
    """Of this process; empty where there is no /proc. Another user's processes may be hidden there, hence the uid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"boot {boot} {Path('/proc/self/ns/pid').readlink()} uid {os.getuid()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """See `Driver.started` (proc(5), stat, field 22); empty if the process is dead, a zombie included."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in {"Z", "X"} else fields[18]
