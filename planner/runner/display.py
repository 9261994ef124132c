"""How a caller shows the work of this room. The caller hands in a `Display`, and the room writes to no terminal."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from planner.local_cluster.embedded import EmbeddedCluster
from planner.store.run_folder import RunFolder

Say = Callable[[str], None]
"""shows a text of one or more lines"""
Progress = Callable[[int, int], None]
"""called with (done, of) during long work"""


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that is about to train: what a caller needs to watch it."""

    run: RunFolder
    launch_id: str
    step: int
    """steps committed so far"""
    total_steps: int
    """0 if not known"""
    state: Callable[[], str]
    """returns what happens while no step is done, or empty if that is not known"""
    why: Callable[[], str]
    """returns the same with the time that is left now, at most some seconds old, or empty if that is not known"""
    held_step: Callable[[], int]
    """returns the newest step that is held or durable, or 0 if that is not known"""
    cluster: EmbeddedCluster | None
    """the local cluster, or None on another cluster"""


Progressing = Callable[[str], AbstractContextManager[Progress]]
"""takes the name of the work, and returns a context for it, whose value is called during the work"""
Doing = Callable[[str], AbstractContextManager[Say]]
"""takes what is being done, and returns a context for it, whose value takes what is being done next"""


def silent(_line: str) -> None:
    """Show nothing."""


def no_progress(_what: str) -> AbstractContextManager[Progress]:
    """A context whose value shows nothing. A `Progressing`."""
    return nullcontext(lambda _done, _of: None)


def not_shown(_what: object) -> AbstractContextManager[Say]:
    """A context that shows nothing. A `Doing`, and a `Display.watch`."""
    return nullcontext(silent)


@dataclass(frozen=True, kw_only=True)
class Display:
    """Where messages, progress and the steps of a run are shown. By default nowhere."""

    say: Say = silent
    """shows messages about the start and the end of the run"""
    warn: Say = silent
    """shows warnings, also where messages are not shown"""
    progress: Progressing = no_progress
    """takes the name of the work, and returns a context whose value is called during the work"""
    doing: Doing = not_shown
    """shows what is being done if it takes more than some seconds"""
    watch: Callable[[StartedRun], AbstractContextManager[Say]] = not_shown
    """returns a context that shows the run's steps, and whose value shows messages between them"""
    verbose: bool = False
    """whether Ray's own messages are shown, which pass by this display"""


def lines_only(say: Say, *, verbose: bool = False) -> Display:
    """A display that only shows messages, with `say`."""
    return Display(say=say, warn=say, watch=lambda _started: nullcontext(say), verbose=verbose)
