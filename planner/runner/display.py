"""How a caller shows the work that this room does: handed in, since the room itself writes to no terminal."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from planner.local_cluster.embedded import EmbeddedCluster
from planner.store.run_folder import RunFolder

Say = Callable[[str], None]
"""shows a line, or several with line breaks between them"""
Progress = Callable[[int, int], None]
"""(done, of) of a long piece of work"""


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that is about to train: what a caller needs to watch it."""

    run: RunFolder
    step: int
    """steps committed so far"""
    total_steps: int
    """0 if not known"""
    state: Callable[[], str]
    """asked what is going on while no step is done; empty if that is not known"""
    cluster: EmbeddedCluster | None
    """the local cluster that it runs on, if it does"""


def silent(_line: str) -> None:
    """Show nothing."""


def _no_progress(_what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _done, _of: None)


def _not_watched(_running: StartedRun) -> AbstractContextManager[Say]:
    return nullcontext(silent)


@dataclass(frozen=True, kw_only=True)
class Display:
    """Where the lines, the progress and the state of a run are shown. By default nowhere."""

    say: Say = silent
    """of how the run starts"""
    warn: Say = silent
    """of what somebody should look into, whatever else is shown"""
    progress: Callable[[str], AbstractContextManager[Progress]] = _no_progress
    """what is being done -> a context, and what to call in it as it is done"""
    watch: Callable[[StartedRun], AbstractContextManager[Say]] = _not_watched
    """shows the steps of the run while the context lasts; its value shows lines among them"""


def spoken(say: Say) -> Display:
    """A display that has lines alone."""
    return Display(say=say, warn=say, watch=lambda _running: nullcontext(say))
