"""Sentences for what the workers of a generation note: memory, commits, the data, the reference, the end."""

from planner.base.disk import size_text
from planner.base.text import counted, duration
from planner.events.saves import (
    CommitInterval,
    CopyInterval,
    HostRoomLacking,
    KeeperFound,
    KeeperLost,
    LoadedFromMemory,
    MeasuredInterval,
    OldFilesLeft,
    ReplicaLost,
)
from planner.events.training import (
    AdaptersPlaced,
    DataNote,
    DurationConverted,
    GenerationStopped,
    HeldOutNotFinite,
    ObjectiveRemark,
    ReferenceComputed,
    ReferenceDamaged,
    ReferenceProgress,
    ReferenceStopped,
    SamplesRepeat,
    StepSkipped,
)
from planner.events.waited import Waited
from planner.plan.commit_size import COPIES
from planner.wording.sentence import text_of

# -- commits and copies


@text_of.register
def _measured_interval(event: MeasuredInterval) -> str:
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


def interval_text(event: CommitInterval) -> str:
    """How often the run commits, as a phrase after `commits`."""
    about = text_of(event.measured)
    if event.steps < event.measured.steps:
        limit = f"about every {duration(event.work_s)}, {counted(event.steps, 'step')} now, the limit of work at risk"
        about = f"{limit}. The measured interval would be {about}"
    if event.steps_left is None:
        return about
    return f"only at the end, in {counted(event.steps_left, 'step')}, since the measured interval is {about}"


@text_of.register
def _commit_interval(event: CommitInterval) -> str:
    return f"commits {interval_text(event)}"


@text_of.register
def _old_files_left(event: OldFilesLeft) -> str:
    return (
        f"step {event.step} is durable, but files of older commits could not be removed: {event.reason}. "
        "This is tried again after the next commit"
    )


@text_of.register
def _copy_interval(event: CopyInterval) -> str:
    steps = "step" if event.steps == 1 else f"{event.steps} steps"
    return f"copies in memory every {steps}: one takes {1000 * event.copy_s:.0f} ms"


@text_of.register
def _host_room_lacking(event: HostRoomLacking) -> str:
    what = "a copy" if event.copies == 1 else f"{event.copies} copies"
    return (
        f"training goes on {COPIES[event.copies]}: {what} of the state on {event.host} "
        f"{'needs' if event.copies == 1 else 'need'} {size_text(event.needed_bytes)} of host memory, and of "
        f"{size_text(event.available_bytes)} available, training takes {size_text(event.training_bytes)} and a fifth "
        "is left free"
    )


def held_text(event: LoadedFromMemory) -> str:
    """Which copies a generation resumes from."""
    copies = f"copies of {counted(event.workers, 'worker')} on {counted(event.nodes, 'node')}"
    return f"step {event.step} of generation {event.generation}, {copies}"


@text_of.register
def _loaded_from_memory(event: LoadedFromMemory) -> str:
    return f"loaded from memory: {held_text(event)}"


@text_of.register
def _keeper_lost(event: KeeperLost) -> str:
    return f"no copies in memory{'' if event.is_full else ' for now'}: {event.reason}"


@text_of.register
def _keeper_found(_event: KeeperFound) -> str:
    return "copies in memory again"


@text_of.register
def _replica_lost(event: ReplicaLost) -> str:
    return f"no copies on node {event.node} for now: {event.reason}"


# -- data, steps, reference


@text_of.register
def _data_note(event: DataNote) -> str:
    return f"data: {event.text}"


def repeat_text(event: SamplesRepeat) -> str:
    """How many samples repeat."""
    size = event.global_batch
    note = f"batch.global {size} is larger than an epoch of {event.num_samples} samples, so every step repeats some of"
    if event.more is None:
        return f"{note} them"
    used = f"{event.steps} steps use {event.steps * size} samples"
    return f"{note} them. {used}, {event.more:.0%} more than train.epochs asks for"


@text_of.register
def _samples_repeat(event: SamplesRepeat) -> str:
    return f"data: {repeat_text(event)}"


@text_of.register
def _duration_converted(event: DurationConverted) -> str:
    given = f"{event.duration} {event.given}"
    if event.steps is None or event.examples is None:
        return f"{given}, in steps once the data is open"
    return f"{given} = {counted(event.steps, 'step')} ({counted(event.examples, 'example')})"


def adapters_text(event: AdaptersPlaced) -> str:
    """The number of a model's linear layers, and how many of them have adapters."""
    return f"adapters on {event.adapted} of {event.layers} layers"


@text_of.register
def _adapters_placed(event: AdaptersPlaced) -> str:
    return f"model: {adapters_text(event)}"


def gradient_text(event: StepSkipped) -> str:
    """Which gradient of which step is not finite."""
    where = event.tensor or "no single tensor (the norm itself overflows)"
    return f"step {event.step}: the gradient's norm is {event.norm}, in {where}"


@text_of.register
def _step_skipped(event: StepSkipped) -> str:
    return f"{gradient_text(event)}. The step was skipped (train.non_finite: skip)"


@text_of.register
def _objective_remark(event: ObjectiveRemark) -> str:
    return f"step {event.step}: {event.text}"


@text_of.register
def _held_out_not_finite(event: HeldOutNotFinite) -> str:
    return f"step {event.step}: the held-out loss is not finite"


@text_of.register
def _reference_damaged(event: ReferenceDamaged) -> str:
    return f"reference log-probabilities: {event.reason}. It is computed again"


@text_of.register
def _reference_progress(event: ReferenceProgress) -> str:
    return f"reference log-probabilities of {event.done} of {event.rows} rows are computed"


@text_of.register
def _reference_computed(event: ReferenceComputed) -> str:
    return f"reference log-probabilities of {counted(event.rows, 'row')} computed in {duration(event.seconds)}"


@text_of.register
def _reference_stopped(event: ReferenceStopped) -> str:
    return f"stopped at {event.done} of {event.rows} rows whose reference log-probabilities were missing"


# -- the end, and the time before the begin


@text_of.register
def _generation_stopped(event: GenerationStopped) -> str:
    return f"stopped: {event.reason}"


@text_of.register
def _waited(event: Waited) -> str:
    return f"no group could start for {duration(event.waited_s)}: too little room"
