"""What a generation notes of its data, its steps, its reference and its end."""

from typing import Literal

from planner.events.event import Event


class DataNote(Event, name="data_note"):
    """What a data module says of its rows, as its own text."""

    text: str


class DurationConverted(Event, name="duration_converted"):
    """A duration of the job file in optimizer steps."""

    duration: str
    """`warmup`, `commit every`, ..."""
    given: str
    """as in the job file, such as `20000 examples`"""
    steps: int | None
    """None: not known before the data is open"""
    examples: int | None
    """that these steps use"""


class AdaptersPlaced(Event, name="adapters_placed"):
    """How many of a model's linear layers have adapters."""

    adapted: int
    layers: int


class AttentionChosen(Event, name="attention_chosen"):
    """What `model.attention: auto` became on the workers."""

    attention: str
    passed_over: tuple[str, ...] = ()
    """what comes before it in the order of `auto` and the model cannot have: `name: reason`"""
    before: str = ""
    """what the run computed with until now, if that is another one. Else empty"""


class MicroBatchFitted(Event, name="micro_batch_fitted"):
    """A cap on micro-batches that is `auto` became a number, by the memory of a group's devices."""

    max_micro: int
    max_tokens: int | None = None
    """what `batch.max_tokens: auto` became. None without it: then `max_micro` is what `auto` became"""
    device: str
    """kind of device: a GPU's name, or `CPU`"""
    needed_bytes: int
    """of each worker, as predicted"""
    device_bytes: int
    """of the smallest device, or of a worker's part of it"""


class StepSkipped(Event, name="step_skipped"):
    """A step's gradient was not finite, so the weights did not change (`train.non_finite: skip`)."""

    step: int
    norm: Literal["nan", "inf"]
    """of the gradient, as text because JSON has no such numbers"""
    tensor: str
    """the first one whose gradient is not finite. Empty: each is finite, and the norm overflows"""


class ObjectiveRemark(Event, name="objective_remark"):
    """What an objective says of a step's global batch, as its own text. Once per generation."""

    step: int
    text: str


class HeldOutNotFinite(Event, name="held_out_not_finite"):
    """The held-out loss before a step is not finite, so it is not recorded."""

    step: int


class ReferenceDamaged(Event, name="reference_damaged"):
    """A file of reference log-probabilities cannot be used and is computed again."""

    reason: str


class ReferenceProgress(Event, name="reference_progress"):
    """So many rows of the missing ones have their reference log-probabilities."""

    done: int
    rows: int


class ReferenceComputed(Event, name="reference_computed"):
    """All missing reference log-probabilities are computed."""

    rows: int
    seconds: float


class ReferenceStopped(Event, name="reference_stopped"):
    """The generation was stopped before all reference log-probabilities were computed."""

    done: int
    rows: int


class GenerationStopped(Event, name="generation_stopped"):
    """An error stopped the generation."""

    error: str
    """its type"""
    reason: str


class SamplesRepeat(Event, name="samples_repeat"):
    """A global batch is larger than an epoch, so every step repeats samples."""

    global_batch: int
    num_samples: int
    """of an epoch"""
    steps: int
    more: float | None
    """samples beyond those that `train.epochs` asks for, as a fraction of them. None: the job sets no epochs"""
