"""What a tracker is: a small protocol, and how the one that a job names is opened."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from planner.base.text import how_to_install
from planner.errors import TrackerUnavailable
from planner.job.tracking import TRACKERS, Tracking
from planner.tracking.row import Row


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run whose rows are sent."""

    url: str
    """the run's folder"""
    folder: str
    """the run's folder on this machine, or empty if it is at a URL"""
    run_id: str
    """unique name of the run, 32 hex digits"""
    name: str
    """the name of the job"""
    tracker_id: str
    """the tracker's own name of its run, from the last time. Empty at the first time"""
    last_step: int
    """the last step on record for this tracker, or -1. A tracker that cannot tell what it has returns this number"""
    config: Mapping[str, Any]
    """the job's settings with dotted keys, and planner's version"""


class Tracker(Protocol):
    """Takes the rows of one run. All methods may raise anything: planner tries again later, with a new tracker.

    planner calls it in one thread, which is not the main thread.
    """

    @property
    def tracker_id(self) -> str:
        """The tracker's own name of its run, with which another process can go on. Empty if it needs none."""
        ...

    def last_step(self) -> int:
        """The highest step whose row it has in full, or -1. Asked once, before the first `log`."""
        ...

    def log(self, rows: Sequence[Row]) -> None:
        """Take rows with rising steps. It returns when a crash of this process no longer loses them."""
        ...

    def live(self, values: Mapping[str, float]) -> None:
        """Show values of a step that may still be undone, in a place where the next call replaces them.

        A tracker without such a place ignores them.
        """
        ...

    def close(self) -> None:
        """Send what is left and free the tracker's resources."""
        ...


def open_tracker(section: Tracking, run: TrackedRun) -> Tracker:
    """Open the tracker that a section of the job names.

    Raises:
        TrackerUnavailable: its kind or its library is not installed.
        Exception: the tracker cannot be reached, or whatever its library raises.
    """
    require_usable(section, run.url)
    tracker: Tracker = TRACKERS.named(section.kind, TRACKERS.spec_of_kind(section.kind).open)(section, run)
    return tracker


def require_usable(section: Tracking, url: str) -> None:
    """Check that a tracker has its library and its settings. Whether its server answers is not checked.

    Args:
        section: the tracker's section of the job.
        url: the run's folder.

    Raises:
        TrackerUnavailable: something is missing. The message says what to do.
    """
    require_installed(section)
    if check := TRACKERS.spec_of_kind(section.kind).check:
        TRACKERS.named(section.kind, check)(section, url)


def require_installed(section: Tracking) -> None:
    """Check that the library of a tracker is installed. Imports nothing.

    Raises:
        TrackerUnavailable: it is not. The message says how to install it.
    """
    spec = TRACKERS.spec_of_kind(section.kind)
    if not spec.package or importlib.util.find_spec(spec.package) is not None:
        return
    how = how_to_install(spec.extra) if spec.extra else f"pip install {spec.package}"
    raise TrackerUnavailable(f"tracking: {spec.kind} needs the package {spec.package}. Install it: {how}")
