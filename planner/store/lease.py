"""One driver per run: a numbered lease in the run's folder, held while the driver lives.

Clocks of two machines are never compared: a lease that does not change while it is watched is a dead driver's. The
highest number counts and stays, even when it is given back, so that numbers only rise: of several drivers that find
the same dead lease, put-if-absent gives the next number to one. The lease spares people surprises; what keeps a run
whole, should two drivers run it nevertheless, are generation numbers (`Run.require_current`).
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Self

from planner.errors import AnotherDriver, NewerFormat, StoreError
from planner.store.driver import FoundLease, lease_name, this_driver
from planner.store.records import seal
from planner.store.storage import Storage

# A beat is three requests to an object store: some ten dollars a month. A wait for a dead driver is three beats.
_BEAT_S = 5.0
# Who is late with one beat, or with two, is not dead.
_SILENT_BEATS = 3
# A store that hangs must not hold up the end of a run.
_RELEASE_S = 10.0


class Lease:
    """A context manager: the run is this driver's from the beginning to the end, or `AnotherDriver` is raised.

    A thread renews it. Should another driver have taken it meanwhile, `on_lost` is called in that thread (by default it
    interrupts this process as Ctrl-C does), and leaving the context raises. On any way out it is given back.
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
            if found is not None and found.refusal:
                raise NewerFormat(f"{self._storage.url}: {found.refusal}")
            if found is not None and not self._is_over(found):
                stop = f" (kill {found.holder.pid} on {found.holder.host})" if found.holder else ""
                url = self._storage.url
                raise AnotherDriver(
                    f"{url}: {found.description} is running this run; stop it first{stop} or wait for its end (one "
                    "that was killed is noticed without your help); if you know that its machine is gone, remove "
                    f"{url}/{lease_name(found.number)}"
                )
            self._number = self._taken(found.number + 1 if found else 1)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(_RELEASE_S)
        if self._lost_to:
            raise AnotherDriver(
                f"{self._storage.url}: {self._lost_to} has taken this run over while this driver was suspended or cut "
                "off from the store; this one stops, and what was committed stands"
            )

    def _is_over(self, found: FoundLease) -> bool:
        """Whether its driver has ended: known at once on the same machine, found out by watching elsewhere."""
        holder = found.holder
        if holder is not None and (found.is_released or holder.is_near(self._me)):
            return found.is_released or not holder.is_running
        beat_s = holder.beat_s if holder else _BEAT_S
        self._say(
            f"{found.description} held this run: watching for {_SILENT_BEATS * beat_s:.0f} s whether it still does"
        )
        for _ in range(_SILENT_BEATS):
            self._sleep(beat_s)
            now = newest_lease(self._storage)
            if now is None or now.number != found.number:
                return True  # what is there now will be judged by itself: the number after `found` is no longer free
            if now != found:
                return now.is_released
        return True

    def _taken(self, number: int) -> int:
        """The number if it is ours now, 0 if it was taken, or was free only because others have gone on from it."""
        if not self._storage.create(lease_name(number), seal(self._me)):
            return 0
        newest = max(_numbers(self._storage), default=0)
        with contextlib.suppress(StoreError):  # the holder of a higher number may be tidying, too
            for older in _numbers(self._storage):
                if older < newest:
                    self._storage.delete(lease_name(older))
        return number if newest == number else 0

    def _renew_until_ended(self) -> None:
        # A thread's outer edge: a store that cannot be reached, whatever it raises, is tried again and ends nothing.
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
            return  # removed by hand, or a mount that is away: nobody has taken it, and nothing is put there
        if found.number != self._number or (found.holder and found.holder.launch != self._me.launch):
            self._lost_to = found.description
            return
        self._me = self._me.model_copy(update={"beat": self._me.beat + 1, "held": held})
        self._storage.write(lease_name(self._number), seal(self._me))


def newest_lease(storage: Storage) -> FoundLease | None:
    """The lease that counts; none if nobody has driven the run.

    Raises:
        StoreError: it is there and cannot be read.
    """
    numbers = _numbers(storage)
    while numbers:
        try:
            return FoundLease(numbers[-1], storage.read(lease_name(numbers[-1])))
        except StoreError:
            before, numbers = numbers, _numbers(storage)
            if numbers == before:
                raise  # not tidied away by the next holder: it cannot be read
    return None


def _numbers(storage: Storage) -> list[int]:
    found = (re.fullmatch(r"([0-9]{6,})\.json", name) for name in storage.names("drivers"))
    return sorted(int(match[1]) for match in found if match)
