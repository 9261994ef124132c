"""Sentences of `planner.events.saves`."""

from planner.base.disk import size_text
from planner.base.text import counted, duration
from planner.events import saves
from planner.plan.commit_size import COPIES
from planner.wording.sentence import text_of


@text_of.register
def _measured_interval(event: saves.MeasuredInterval) -> str:
    spent_s = event.work_s + event.save_s
    overhead = event.save_s / spent_s if spent_s else 0.0  # 0 too if a ledger says nonsense
    background = f" and is durable after {duration(event.write_s)}" if event.write_s > event.save_s else ""
    undone_s = event.work_s / 2 + max(event.write_s - event.save_s, 0.0)
    return (
        f"about every {duration(event.work_s)}, {counted(event.steps, 'step')} now: a save costs "
        f"{duration(event.save_s)}, {overhead:.1%} of the time{background}, and a loss without notice undoes "
        f"{duration(undone_s)} on average. One in {duration(event.between_losses_s)} is expected ({event.losses} in "
        f"{duration(event.observed_s)} so far, and one an hour assumed beforehand)"
    )


def interval_text(event: saves.CommitInterval) -> str:
    """How often the run commits, as a phrase after `commits`."""
    about = text_of(event.measured)
    if event.steps < event.measured.steps:
        limit = f"about every {duration(event.work_s)}, {counted(event.steps, 'step')} now, the limit of work at risk"
        about = f"{limit}. The measured interval would be {about}"
    if event.steps_left is None:
        return about
    return f"only at the end, in {counted(event.steps_left, 'step')}, since the measured interval is {about}"


@text_of.register
def _commit_interval(event: saves.CommitInterval) -> str:
    return f"commits {interval_text(event)}"


@text_of.register
def _old_files_left(event: saves.OldFilesLeft) -> str:
    return (
        f"step {event.step} is durable, but files of older commits could not be removed: {event.reason}. "
        "This is tried again after the next commit"
    )


@text_of.register
def _copy_interval(event: saves.CopyInterval) -> str:
    steps = "step" if event.steps == 1 else f"{event.steps} steps"
    return f"copies in memory every {steps}: one takes {1000 * event.copy_s:.0f} ms"


@text_of.register
def _host_room_lacking(event: saves.HostRoomLacking) -> str:
    what = "a copy" if event.copies == 1 else f"{event.copies} copies"
    return (
        f"training goes on {COPIES[event.copies]}: {what} of the state on {event.host} "
        f"{'needs' if event.copies == 1 else 'need'} {size_text(event.needed_bytes)} of host memory, and of "
        f"{size_text(event.available_bytes)} available, training takes {size_text(event.training_bytes)} and a fifth "
        "is left free"
    )


@text_of.register
def _floor_room_lacking(event: saves.FloorRoomLacking) -> str:
    return (
        "if all spot nodes are lost at once, training resumes from the last commit: the on-demand node "
        f"{event.host} needs {size_text(event.needed_bytes)} of host memory for the copies of all others, and may take "
        f"four fifths of {size_text(event.available_bytes)}"
    )


def held_text(event: saves.LoadedFromMemory) -> str:
    """Which copies a generation resumes from."""
    copies = f"copies of {counted(event.workers, 'worker')} on {counted(event.nodes, 'node')}"
    return f"step {event.step} of generation {event.generation}, {copies}"


@text_of.register
def _loaded_from_memory(event: saves.LoadedFromMemory) -> str:
    return f"loaded from memory: {held_text(event)}"


@text_of.register
def _keeper_lost(event: saves.KeeperLost) -> str:
    return f"no copies in memory{'' if event.is_full else ' for now'}: {event.reason}"


@text_of.register
def _keeper_found(_event: saves.KeeperFound) -> str:
    return "copies in memory again"


@text_of.register
def _replica_lost(event: saves.ReplicaLost) -> str:
    return f"no copies on node {event.node} for now: {event.reason}"
