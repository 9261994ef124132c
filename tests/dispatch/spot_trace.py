"""How many spot nodes there are at each moment, as planner's own CSV has it."""

import bisect
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Trace:
    """How many nodes there are at each moment: a step function."""

    times_s: tuple[float, ...]
    counts: tuple[int, ...]

    def at(self, time_s: float) -> int:
        """The number at `time_s`; before the first row and after the last one it is theirs."""
        return self.counts[max(bisect.bisect_right(self.times_s, time_s) - 1, 0)]

    @property
    def end_s(self) -> float:
        """The last row's moment."""
        return self.times_s[-1]

    def scaled(self, most: int) -> "Trace":
        """The same with `most` nodes where there were most; rounded, and none only where there were none."""
        largest = max(self.counts)
        counts = tuple(max(round(count * most / largest), min(count, 1)) for count in self.counts)
        return Trace(times_s=self.times_s, counts=counts)

    def window(self, since_s: float, seconds: float) -> "Trace":
        """A piece of it, whose time begins at 0."""
        inside = [at for at in self.times_s if since_s < at < since_s + seconds]
        moments = (since_s, *inside, since_s + seconds)
        return Trace(times_s=tuple(at - since_s for at in moments), counts=tuple(self.at(at) for at in moments))

    def faster(self, speed: float) -> "Trace":
        """The same in less time."""
        return Trace(times_s=tuple(time_s / speed for time_s in self.times_s), counts=self.counts)

    def spans(self) -> Iterator[tuple[float, int]]:
        """(seconds, nodes) from each row to the next."""
        for (since_s, count), (until_s, _) in pairwise(zip(self.times_s, self.counts, strict=True)):
            yield until_s - since_s, count


def read_trace(path: str | Path) -> Trace:
    """A CSV with the columns `time_s,available_nodes`; the last row marks the end."""
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return Trace(
        times_s=tuple(float(row["time_s"]) for row in rows),
        counts=tuple(int(row["available_nodes"]) for row in rows),
    )
