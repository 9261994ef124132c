"""What a watcher knows of a run, and the run's state in a word."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from planner.base.text import duration
from planner.report.loss_curve import Points
from planner.report.run_table import Event
from planner.store.run_status import FRESH_S, RunStatus
from planner.story.run_story import RunStory

Style = Literal["", "bold", "dim", "good", "change", "wait", "bad"]
"""`change`: the group changes. `wait`: nothing trains, and nothing is wrong"""

Driver = Literal["none", "alive", "ended", "dead", "elsewhere", "silent"]
"""`dead`: it did not release the run. `elsewhere`: on another machine, and not watched long enough yet.
`silent`: there too, and it no longer renews its lease"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that a watcher knows of a run."""

    url: str
    is_run: bool = True
    """false: the folder is empty"""
    problem: str = ""
    """why the run cannot be resumed, empty if it can"""
    store_error: str = ""
    """why the store did not answer the last time, empty if it did"""
    driver: Driver = "none"
    driver_text: str = ""
    """pid and host of the driver"""
    silent_s: float = 0.0
    """how long the driver has not renewed its lease, if it is `silent`"""
    status: RunStatus | None = None
    """of the driver that holds the run"""
    status_age_s: float = 0.0
    """how long the status has not changed while it was watched"""
    has_begun: bool = False
    """whether the driver that holds the run has already begun a generation. It removes its status when it ends"""
    story: RunStory = field(default_factory=RunStory)
    losses: Points = ()
    events: Sequence[Event] = ()
    committed_step: int = 0
    committed_time_s: float | None = None
    resume: str = ""
    """the command that resumes the run, or empty"""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run's state in a word, with an explanation."""

    word: str
    style: Style
    text: str = ""


def run_state(seen: Seen) -> RunState:
    """The state of the run. The board shows it in its first lines."""
    if not seen.is_run:
        return RunState(word="not started", style="wait", text="no run is in this folder yet: waiting for its driver")
    if seen.problem:
        return RunState(word="broken", style="bad", text=seen.problem)
    if seen.driver == "alive" and (seen.status is not None or not seen.has_begun):
        return _live_state(seen)
    if 0 < seen.story.total_steps <= seen.committed_step:
        return RunState(word="finished", style="good", text=f"all {seen.story.total_steps} steps are durable")
    if seen.driver == "alive":
        return RunState(word="ending", style="wait", text=f"the driver ({seen.driver_text}) ends the run")
    return _without_driver(seen)


def _without_driver(seen: Seen) -> RunState:
    driver = seen.driver_text
    resume = f". To resume: {seen.resume}" if seen.resume else ""
    if seen.driver == "dead":
        return RunState(word="driver dead", style="bad", text=f"the driver ({driver}) has died{resume}")
    if seen.driver == "silent":
        text = f"the driver ({driver}) has not renewed its lease for {duration(seen.silent_s)}: it has died, or the "
        return RunState(word="driver silent", style="bad", text=f"{text}store does not reach it{resume}")
    if seen.driver == "elsewhere":
        text = f"by a driver on another machine ({driver}). Watching its lease to see if it runs"
        return RunState(word="elsewhere", style="wait", text=text)
    if seen.driver == "none":
        return RunState(word="not started", style="wait", text="no driver has run this run yet")
    return RunState(word="stopped", style="wait", text=f"no driver runs{resume}")


def _live_state(seen: Seen) -> RunState:
    """The state of a run whose driver is alive, by the controller's status."""
    status = seen.status
    if status is None:
        return RunState(word="starting", style="wait", text=f"the driver runs ({seen.driver_text}): no live state yet")
    # While a group trains or waits for room, the last text is of the past.
    word, text = _word(status), status.why if status.state in {"Idle", "Stopping"} or _is_starting(status) else ""
    if seen.status_age_s > FRESH_S:
        text = f"{text or status.next} (published {duration(seen.status_age_s)} ago)"
        # The controller publishes nothing while it starts a group.
        word = word if status.state == "Idle" else "no live state"
    return RunState(word=word, style=_STYLES.get(word, "wait"), text=text)


_STYLES: dict[str, Style] = {
    "starting": "wait",
    "training": "good",
    "notice": "change",
    "warming": "change",
    "stopping": "change",
    "resizing": "change",
    "waiting": "wait",
    "ending": "wait",
}


def _is_starting(status: RunStatus) -> bool:
    return {worker.state for worker in status.workers if worker.rank is not None} == {"starting"}


def _word(status: RunStatus) -> str:
    states = {worker.state for worker in status.workers if worker.rank is not None}
    has_room = sum(node.room for node in status.nodes) >= status.least
    words = {
        "Idle": "resizing" if states else "starting" if has_room else "waiting",
        "Running": "notice" if "leaving" in states else "starting" if states == {"starting"} else "training",
        "Warming": "notice" if "leaving" in states else "warming",
        "Stopping": "stopping",
        "Waiting": "waiting",
        "Ending": "ending",
    }
    return words[status.state]
