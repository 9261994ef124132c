"""Why one generation ended and the next one began."""

from planner.base.text import counted
from planner.store.records import GenerationRecord
from planner.story.values import Change, Phase


def change_between(before: tuple[GenerationRecord, Phase], after: tuple[GenerationRecord, Phase]) -> Change:
    """The change between two phases in a row, each with its header."""
    (old_header, old), (new_header, new) = before, after
    is_another_launch = old_header.launch_id != new_header.launch_id
    return Change(
        at_s=old.end_s,
        resumed_s=new.start_s,
        generation=new.generation,
        step=new.first_step,
        before=old.workers,
        after=new.workers,
        again=max(old.end_step - new.first_step, 0),
        from_memory=new_header.parent_is_held,
        cause=cause(old, new, is_another_launch=is_another_launch),
        reasons=(*_reasons(old, new), *new_header.changed),
    )


def cause(before: Phase, after: Phase, *, is_another_launch: bool = False) -> str:
    """What ended one phase and began the next, in a few words.

    Args:
        before: the phase that ended.
        after: the phase that began.
        is_another_launch: whether another driver began it.
    """
    change = after.workers - before.workers
    if any("lost" in message for message in after.messages):
        return "node lost"
    if is_another_launch:
        return "resumed by another driver"
    if change > 0:
        return f"{counted(change, 'worker')} {'joins' if change == 1 else 'join'}"
    if any("notice" in message for message in before.messages):
        return "preemption notice"
    return f"{counted(-change, 'worker')} {'leaves' if change == -1 else 'leave'}" if change else "restart"


def _reasons(before: Phase, after: Phase) -> list[str]:
    """The decision that ended a phase, if it is on record, and what the next one says of losses and costs."""
    told = [message for message in after.messages if _is_about_the_change(message)]
    is_loss = any("lost" in message for message in told)
    decisions = [message for message in before.messages if message.startswith("resize: ")]
    return told if is_loss else [*decisions[-1:], *told]


def _is_about_the_change(message: str) -> bool:
    is_from_memory = message.startswith("loaded from memory")
    return is_from_memory or "lost" in message or "failed" in message or " cost " in message
