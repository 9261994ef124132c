"""Divides a step's time into its parts, without waiting for the device."""

import time
from typing import Literal

import torch

Part = Literal["data", "forward", "backward", "update"]
PARTS: tuple[Part, ...] = ("data", "forward", "backward", "update")


class Stopwatch:
    """Adds up the time between the boundaries of a step's parts, for work that is done when its call returns."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._last_s = time.perf_counter()
        self._marked = self._seconds

    def mark(self) -> None:
        """Remember the times until now."""
        self._marked = self._seconds.copy()

    def rewind(self) -> None:
        """Drop the times since `mark`. Nothing may have taken times in between."""
        self._seconds = self._marked.copy()

    def skip(self) -> None:
        """Set a boundary. The time since the last one belongs to no part."""
        self._last_s = time.perf_counter()

    def lap(self, part: Part) -> None:
        """Set a boundary. The time since the last one belongs to `part`."""
        now_s = time.perf_counter()
        self._seconds[part] += now_s - self._last_s
        self._last_s = now_s

    def take(self, *, all_of_it: bool) -> dict[Part, float]:
        """Return the seconds of each part since the last call, and reset them.

        Args:
            all_of_it: wait until the device has reached the last boundary. Otherwise, what it has not done yet is in
                the next call's answer.
        """
        del all_of_it
        seconds, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return seconds


class CudaStopwatch(Stopwatch):
    """For work that a GPU does later: events in its stream, which are read when the GPU has passed them."""

    def __init__(self) -> None:
        super().__init__()
        self._last = _recorded_event()
        self._laps: list[tuple[Part, torch.cuda.Event, torch.cuda.Event]] = []
        self._num_marked = 0

    def mark(self) -> None:
        """Remember the times until now."""
        super().mark()
        self._num_marked = len(self._laps)

    def rewind(self) -> None:
        """Drop the times since `mark`. Nothing may have taken times in between."""
        super().rewind()
        del self._laps[self._num_marked :]

    def skip(self) -> None:
        """Set a boundary. The time since the last one belongs to no part."""
        self._last = _recorded_event()

    def lap(self, part: Part) -> None:
        """Set a boundary. The time since the last one belongs to `part`."""
        begin, self._last = self._last, _recorded_event()
        self._laps.append((part, begin, self._last))

    def take(self, *, all_of_it: bool) -> dict[Part, float]:
        """Return the seconds of each part since the last call, and reset them. What is not done yet stays."""
        if all_of_it:
            self._last.synchronize()
        num_done = 0
        for part, begin, end in self._laps:
            if not end.query():  # type: ignore[no-untyped-call]
                break
            # CUDA events count milliseconds.
            self._seconds[part] += begin.elapsed_time(end) / 1000
            num_done += 1
        del self._laps[:num_done]
        return super().take(all_of_it=all_of_it)


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def stopwatch_of(device: torch.device) -> Stopwatch:
    """The stopwatch for work on a device."""
    return CudaStopwatch() if device.type == "cuda" else Stopwatch()
