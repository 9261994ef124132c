"""One driver per run: a numbered lease in the run's folder, renewed while the driver lives.

The clocks of two machines are never compared. A lease that does not change while it is watched belongs to a dead
driver. The highest number counts. It stays when the lease is released, so numbers only rise, and put-if-absent gives
the next number to one driver. If two drivers run the same run nevertheless, generation numbers keep it intact
(`RunFolder.require_current`).
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

from planner.errors import AnotherDriver, NewerFormat, StoreError
from planner.store.lease_record import FoundLease, lease_name, this_driver
from planner.store.records import seal
from planner.store.storage import Storage

# A renewal is three requests to an object store, about ten dollars a month. A dead driver is noticed after three.
_BEAT_S = 5.0
# A driver that misses one or two renewals may still be alive.
_SILENT_BEATS = 3
# A store that hangs must not delay the end of a run for longer.
_RELEASE_S = 10.0


class DriverLease:
    """A context manager that holds the run for this driver. It raises `AnotherDriver` if another driver holds it.

    A thread renews the lease. If another driver takes the lease, that thread calls `on_lost` (by default it interrupts
    this process like Ctrl-C), and leaving the context raises `AnotherDriver`. Leaving always releases the lease.
    """

    def __init__(
        self,
        storage: Storage,
        launch_id: str,
        say: Callable[[str], None],
        *,
        on_lost: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGINT),
        beat_s: float = _BEAT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage, self._say, self._on_lost, self._sleep = storage, say, on_lost, sleep
        self._me = this_driver(launch_id, beat_s)
        self._number = 0
        self._lost_to = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_ended, name="planner-lease", daemon=True)

    def __enter__(self) -> Self:
        while not self._number:
            found = newest_lease(self._storage)
            if (unknown := require_no_driver(self._storage.url, found)) and not self._goes_silent(unknown):
                raise _running(self._storage.url, unknown)
            self._number = self._taken(found.number + 1 if found else 1)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(_RELEASE_S)
        if self._lost_to:
            raise AnotherDriver(
                f"{self._storage.url}: {self._lost_to} has taken over this run while this driver was suspended or cut "
                "off from the store. This driver stops, and its commits are kept"
            )

    def _goes_silent(self, found: FoundLease) -> bool:
        """Whether its driver has ended, by watching the lease. This machine cannot look for its process."""
        beat_s = found.holder.beat_s if found.holder else _BEAT_S
        self._say(f"{found.description} held this run: watching its lease for {_SILENT_BEATS * beat_s:.0f} s")
        for _ in range(_SILENT_BEATS):
            self._sleep(beat_s)
            now = newest_lease(self._storage)
            if now is None or now.number != found.number:
                return True  # the caller fails to create the next number, and then checks the new lease
            if now != found:
                return now.is_released
        return True

    def _taken(self, number: int) -> int:
        """The number if this driver holds it now, else 0: another driver has taken it or a higher one."""
        if not self._storage.create(lease_name(number), seal(self._me)):
            return 0
        # Listed again: two drivers may each have made a number, if one listed before the other's was there.
        newest = max(_numbers(self._storage), default=0)
        with contextlib.suppress(StoreError):  # the holder of a higher number may delete them at the same time
            for older in _numbers(self._storage):
                if older < newest:
                    self._storage.delete(lease_name(older))
        return number if newest == number else 0

    def _renew_until_ended(self) -> None:
        # The outer edge of a thread: an unreachable store may raise anything, is tried again and ends nothing.
        while not self._ended.wait(self._me.beat_s):
            with contextlib.suppress(Exception):
                self._renew(held=True)
            if self._lost_to:
                self._on_lost()
                return
        with contextlib.suppress(Exception):
            self._renew(held=False)

    def _renew(self, *, held: bool) -> None:
        found = newest_lease(self._storage)
        if found is None:
            return  # removed by hand, or the mount is away: no driver has taken it, and nothing is written
        if found.number != self._number or (found.holder and found.holder.launch != self._me.launch):
            self._lost_to = found.description
            return
        self._me = self._me.model_copy(update={"beat": self._me.beat + 1, "held": held})
        self._storage.write(lease_name(self._number), seal(self._me))


def newest_lease(storage: Storage) -> FoundLease | None:
    """The lease with the highest number. None if the run has had no driver.

    Raises:
        StoreError: the lease exists and cannot be read.
    """
    numbers = _numbers(storage)
    while numbers:
        try:
            return FoundLease(numbers[-1], storage.read(lease_name(numbers[-1])))
        except StoreError:
            before, numbers = numbers, _numbers(storage)
            if numbers == before:
                raise  # the next holder has not deleted it, so it cannot be read
    return None


def driver_state(lease: FoundLease | None) -> Literal["none", "alive", "ended", "unknown"]:
    """The state of a lease's driver. "unknown" on another machine, where only watching the lease would show it."""
    if lease is None:
        return "none"
    if lease.is_released:
        return "ended"
    if lease.holder is None or not lease.holder.is_near(this_driver("", beat_s=1.0)):
        return "unknown"
    return "alive" if lease.holder.is_running else "ended"


def require_no_driver(url: str, found: FoundLease | None) -> FoundLease | None:
    """Check that no driver runs the run at `url`, by its newest lease. A dry run and a start read it alike.

    Returns:
        the lease, if only watching it would show whether its driver has ended. Else None.

    Raises:
        NewerFormat: another version of planner wrote the lease.
        AnotherDriver: its driver is alive.
    """
    if found is not None and found.refusal:
        raise NewerFormat(f"{url}: {found.refusal}")
    state = driver_state(found)
    if found is not None and state == "alive":
        raise _running(url, found)
    return found if state == "unknown" else None


def _running(url: str, found: FoundLease) -> AnotherDriver:
    stop = f" (kill {found.holder.pid} on {found.holder.host})" if found.holder else ""
    return AnotherDriver(
        f"{url}: {found.description} is running this run. Stop it{stop} or wait for its end, or, if its "
        f"machine is gone, remove {url}/{lease_name(found.number)}"
    )


def _numbers(storage: Storage) -> list[int]:
    found = (re.fullmatch(r"([0-9]{6,})\.json", name) for name in storage.names("drivers"))
    return sorted(int(match[1]) for match in found if match)
