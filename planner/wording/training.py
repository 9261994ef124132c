"""Sentences of `planner.events.training`."""

from planner.base.disk import size_text
from planner.base.text import counted, duration
from planner.events import training
from planner.wording.sentence import text_of


@text_of.register
def _data_note(event: training.DataNote) -> str:
    return f"data: {event.text}"


def repeat_text(event: training.SamplesRepeat) -> str:
    """How many samples repeat."""
    size = event.global_batch
    note = f"batch.global {size} is larger than an epoch of {event.num_samples} samples, so every step repeats some of"
    if event.more is None:
        return f"{note} them"
    used = f"{event.steps} steps use {event.steps * size} samples"
    return f"{note} them. {used}, {event.more:.0%} more than train.epochs asks for"


@text_of.register
def _samples_repeat(event: training.SamplesRepeat) -> str:
    return f"data: {repeat_text(event)}"


def conversion_text(event: training.DurationConverted) -> str:
    """A duration as the job has it, and in steps."""
    given = f"{event.duration} {event.given}"
    if event.steps is None or event.examples is None:
        return f"{given}, in steps once the data is open"
    return f"{given} = {counted(event.steps, 'step')} ({counted(event.examples, 'example')})"


@text_of.register
def _duration_converted(event: training.DurationConverted) -> str:
    return conversion_text(event)


def adapters_text(event: training.AdaptersPlaced) -> str:
    """The number of a model's linear layers, and how many of them have adapters."""
    return f"adapters on {event.adapted} of {event.layers} layers"


@text_of.register
def _adapters_placed(event: training.AdaptersPlaced) -> str:
    return f"model: {adapters_text(event)}"


@text_of.register
def _attention_chosen(event: training.AttentionChosen) -> str:
    before = f" instead of {event.before}" if event.before else ""
    passed_over = f" ({'; '.join(event.passed_over)})" if event.passed_over else ""
    return f"model: {event.attention} attention{before}{passed_over}"


def gradient_text(event: training.StepSkipped) -> str:
    """Which gradient of which step is not finite."""
    where = event.tensor or "no single tensor (the norm itself overflows)"
    return f"step {event.step}: the gradient's norm is {event.norm}, in {where}"


@text_of.register
def _micro_batch_fitted(event: training.MicroBatchFitted) -> str:
    room = f"{size_text(event.needed_bytes)} of {size_text(event.device_bytes)} ({event.device})"
    most = counted(event.max_micro, "sample") if event.max_tokens is None else f"{event.max_tokens:,} tokens"
    return f"micro-batches have at most {most} (auto): {room}"


@text_of.register
def _step_skipped(event: training.StepSkipped) -> str:
    return f"{gradient_text(event)}. The step was skipped (train.non_finite: skip)"


@text_of.register
def _objective_remark(event: training.ObjectiveRemark) -> str:
    return f"step {event.step}: {event.text}"


@text_of.register
def _held_out_not_finite(event: training.HeldOutNotFinite) -> str:
    return f"step {event.step}: the held-out loss is not finite"


@text_of.register
def _reference_damaged(event: training.ReferenceDamaged) -> str:
    return f"reference log-probabilities: {event.reason}. It is computed again"


@text_of.register
def _reference_progress(event: training.ReferenceProgress) -> str:
    return f"reference log-probabilities of {event.done} of {event.rows} rows are computed"


@text_of.register
def _reference_computed(event: training.ReferenceComputed) -> str:
    return f"reference log-probabilities of {counted(event.rows, 'row')} computed in {duration(event.seconds)}"


@text_of.register
def _reference_stopped(event: training.ReferenceStopped) -> str:
    return f"stopped at {event.done} of {event.rows} rows whose reference log-probabilities were missing"


# -- the end


@text_of.register
def _generation_stopped(event: training.GenerationStopped) -> str:
    return f"stopped: {event.reason}"
