"""Why one generation ended and the next one began, by the kinds of events on record.

Ledgers of formats 1 and 2 have texts and no kinds. Then worker counts and headers alone give the causes.
"""

from planner.events.event import Event
from planner.events.failures import MemoryLost, NodesLost, WorkersFailed
from planner.events.saves import LoadedFromMemory
from planner.events.sizing import Resized, Resizes
from planner.events.stopping import HeldStepLost, Notice
from planner.store.records import GenerationRecord
from planner.story.values import Cause, Change, Phase

_DECISIONS = frozenset({Notice.name, Resizes.name})
"""kinds that end a generation"""
_ABOUT_THE_CHANGE = frozenset(
    kind.name for kind in (LoadedFromMemory, MemoryLost, NodesLost, WorkersFailed, HeldStepLost, Resized)
)
"""kinds that the next generation notes of the change before it"""


def change_between(before: tuple[GenerationRecord, Phase], after: tuple[GenerationRecord, Phase]) -> Change:
    """The change between two phases in a row, each with its header."""
    (old_header, old), (new_header, new) = before, after
    return Change(
        at_s=old.end_s,
        resumed_s=new.start_s,
        generation=new.generation,
        step=new.first_step,
        before=old.workers,
        after=new.workers,
        again=max(old.end_step - new.first_step, 0),
        from_memory=new_header.parent_is_held,
        cause=_cause(old, new, is_another_launch=old_header.launch_id != new_header.launch_id),
        reasons=(*_reasons(old, new), *new_header.changed),
    )


def _cause(before: Phase, after: Phase, *, is_another_launch: bool) -> Cause:
    if _has(after, NodesLost):
        return "node lost"
    if is_another_launch:
        return "another driver"
    if after.workers > before.workers:
        return "workers join"
    if _has(before, Notice):
        return "notice"
    return "workers leave" if after.workers < before.workers else "restart"


def _has(phase: Phase, kind: type[Event]) -> bool:
    return any(told.event == kind.name for told in phase.told)


def _reasons(before: Phase, after: Phase) -> list[str]:
    """The decision that ended a phase, if it is on record, and what the next one says of losses and costs."""
    about = [told.text for told in after.told if told.event in _ABOUT_THE_CHANGE]
    decisions = [told.text for told in before.told if told.event in _DECISIONS]
    return about if _has(after, NodesLost) else [*decisions[-1:], *about]
