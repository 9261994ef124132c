"""Translates a job into another system's options. Each value is written, or listed as one that they cannot express."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.job import ChatData, HfModel, Job, Rows, duration
from planner.recipes.drafting import plain
from planner.recipes.recipe import Recipe, ToDo
from planner.recipes.scalars import number

# Null is a choice for these: no clipping, no limit of prompts. Any other null means that the job has no such value.
_MEANINGFUL_NULLS = ("train.clip_norm", "data.max_prompt")
DATA_SETS = "data.path data.config data.folder data.split data.revision data.columns data.loader data.mixture data.seed"
"""the values that name data sets"""
# Objectives that the target systems compute in another way, and how.
_DIFFERENT = {"kto": "planner's KL baseline is over the whole batch, that system's over micro-batches"}
# How planner runs a job. Training does not depend on these.
_OF_THE_RUN = ("name", "batch.max_micro", "train.non_finite", "workers", "checkpoint")


@dataclass(kw_only=True)
class Rendering:
    """Collects the options to type, and texts on values without an option. `close` lists every value that is left."""

    job: Job
    arguments: list[str] = field(default_factory=list)
    unsaid: list[ToDo] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """variables to set for the command"""
    file: str = ""
    """the text of a file for options that the system reads only from one"""
    _values: dict[str, Any] = field(init=False)
    """the job's values by their dotted names"""
    _open: dict[str, Any] = field(init=False)
    """the values that are neither written nor listed yet"""

    def __post_init__(self) -> None:
        self._values = dict(leaves(self.job))
        self._open = dict(self._values)

    def value(self, name: str) -> Any:
        """The value of a dotted name, None if it is null or the job has no such value."""
        return self._values.get(name)

    def write_number(self, name: str, option: str) -> None:
        """Write an option with a number of the job, if it has one of that name. `option` ends with `=` or a space."""
        if (value := self.value(name)) is not None:
            self.write(name, f"{option}{number(value)}")

    def write(self, names: str, *arguments: str) -> None:
        """Write options for values or sections, named in one text. Without options, the system's default is equal."""
        self._take(names)
        self.arguments += arguments

    def leave(self, names: str, why: str) -> None:
        """List the values of these names that are neither written nor listed yet, with the reason."""
        if found := self._take(names):
            shown = ", ".join(f"{name} {_shown(value)}" for name, value in found.items())
            self.unsaid.append(ToDo(text=f"{shown}: {why}"))

    def remark(self, text: str) -> None:
        """Add a text on a value that is written."""
        self.unsaid.append(ToDo(text=text))

    def write_or_leave(self, names: str, arguments: list[str], why: str) -> None:
        """Write the options if there are any, else list the values with the reason."""
        if arguments:
            self.write(names, *arguments)
        else:
            self.leave(names, why)

    def close(self, why: str) -> None:
        """List all values that are left, so that none is dropped silently."""
        rest = [name for name in self._open if not any(_is_in(name, part) for part in _OF_THE_RUN)]
        self.leave(" ".join(rest), why)
        self.leave(" ".join(_OF_THE_RUN), "these only say how planner runs the job")

    def _take(self, names: str) -> dict[str, Any]:
        parts = names.split()
        taken = {name: value for name, value in self._open.items() if any(_is_in(name, part) for part in parts)}
        self._open = {name: value for name, value in self._open.items() if name not in taken}
        return taken


def leaves(job: Job) -> Iterator[tuple[str, Any]]:
    """Every value of a job with its dotted name. Nulls only where they are a choice."""
    idle = {*_idle("data", job.data), *_idle("eval.data", job.eval.data)}
    found = _flat(job.model_dump(by_alias=True, exclude={"tracking"}), "")
    yield from ((name, value) for name, value in found if name not in idle)
    yield from tracker_values(job)


def _idle(section: str, rows: Any) -> Iterator[str]:
    """The names of values that say nothing: `path` beside a mixture, and the seed where no part of a set is chosen."""
    if isinstance(rows, Rows):
        yield f"{section}.path" if rows.mixture else f"{section}.mixture"
        if all((each.fraction, each.weight, each.rows) == (None, None, None) for each in rows.sets):
            yield f"{section}.seed"


def tracker_values(job: Job) -> Iterator[tuple[str, Any]]:
    """The values of a job's trackers that are not defaults: `tracking.wandb.project`. A second wandb is `wandb2`."""
    seen: list[str] = []
    for tracker in job.tracking:
        seen.append(tracker.kind)
        count = seen.count(tracker.kind)
        label = tracker.kind if count == 1 else f"{tracker.kind}{count}"
        yield f"tracking.{label}.kind", tracker.kind
        for name, value in tracker.model_dump(exclude={"kind"}, exclude_defaults=True).items():
            yield f"tracking.{label}.{name}", value


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif key == "mixture":
            yield name, [{ours: its for ours, its in each.items() if its is not None} for each in value]
        elif value is not None or name in _MEANINGFUL_NULLS:
            yield name, value


def _is_in(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")


def _shown(value: Any) -> str:
    return plain(value) or '""'


# -- values that several systems take in the same way


def attention_of(model: HfModel) -> str:
    """What other systems call it. `auto` is what they do unless told, and they have no `varlen`."""
    return "sdpa" if model.attention in {"auto", "varlen"} else model.attention


def leave_model(rendering: Rendering) -> None:
    """Write or list those values of a model that all target systems treat alike."""
    rendering.leave("model.lora", "write the adapters in that system's options")
    if rendering.value("model.lora.rank") is None:
        rendering.write("model.frozen")  # without adapters, no weights are frozen
    rendering.leave("model.frozen", "write the precision of the weights below the adapters in that system's options")
    rendering.leave("model.chat_template", "write it into the tokenizer's folder")
    if rendering.job.model.kind == "hf":
        rendering.write("model.kind")
        if rendering.job.model.weights == "pretrained":
            rendering.write("model.weights")


def remark_selective(rendering: Rendering) -> None:
    """Say that another system has only whole blocks to compute again."""
    if rendering.job.train.activation_checkpointing == "selective":
        rendering.remark("train.activation_checkpointing selective: that system computes whole blocks again")


def leave_loss(rendering: Rendering, mean_over: str, log_probs: str) -> None:
    """List the values with which the target system would compute another loss.

    Args:
        rendering: what is written and listed so far.
        mean_over: what the target system's sft averages over: tokens or samples.
        log_probs: how its ipo takes log-probabilities: mean or sum.
    """
    if rendering.value("objective.mean_over") == mean_over:
        rendering.write("objective.mean_over")
    rendering.leave("objective.mean_over", f"that system's mean is over {mean_over}, so the loss differs")
    if rendering.value("objective.log_probs") == log_probs:
        rendering.write("objective.log_probs")
    rendering.leave("objective.log_probs", f"that system takes the {log_probs}, so the loss differs")
    if difference := _DIFFERENT.get(rendering.job.objective.kind):
        rendering.remark(f"objective {rendering.job.objective.kind}: {difference}")
    rendering.leave("objective.reference_model", "that system's reference has the first weights")
    if rendering.job.reference.source == "model":
        rendering.write("objective.reference")


def leave_rows(rendering: Rendering, *, all_of_it: bool, packs: bool) -> None:
    """List the values of the data with which the same rows would have another loss in the target system.

    Args:
        rendering: what is written and listed so far.
        all_of_it: whether every token of a conversation bears loss in that system.
        packs: whether that system can pack rows.
    """
    data = rendering.job.data
    rendering.write("data.kind")
    if not isinstance(data, ChatData):
        return
    if data.packing and not packs:
        rendering.leave("data.packing", "that system does not pack rows, so its batch would hold fewer examples")
    else:
        rendering.write("data.packing", *(["--packing"] if data.packing else []))
    if all_of_it == (data.loss_on == "all"):
        rendering.write("data.loss_on")
    elif all_of_it:
        rendering.leave("data.loss_on", "for rows of messages write --assistant_only_loss true")
    else:
        rendering.leave("data.loss_on", "in that system only completions bear loss, so the loss differs")


def leave_padding(rendering: Rendering, why: str = "it only saves padding") -> None:
    """List the caps in tokens, without which another system computes the same batch."""
    rendering.leave("batch.max_tokens batch.attention_at", f"{why}. The batch stays exact")


def guessed_precision(recipe: Recipe) -> tuple[str, ...]:
    """A note on a new file whose precision is a guess, because the recipe does not set it. Empty if it does."""
    return () if recipe.precision else ("mixed precision in the file is bf16: change it if yours differs",)


def clip_of(job: Job, none: str) -> str:
    """The norm that gradients are clipped to, or `none`, the system's value for no clipping."""
    return number(job.train.clip_norm) if job.train.clip_norm else none


def warmup_steps(job: Job) -> str:
    """A job's warmup in optimizer steps, empty if its unit cannot be converted without the data."""
    found = duration.parse(job.train.schedule.warmup)
    if not found.amount:
        return "0"
    size = {"steps": 1, "examples": job.batch.global_batch}.get(found.unit)
    return "" if size is None or found.amount % size else str(found.amount // size)


def warmup_share(job: Job) -> str:
    """A job's warmup as a fraction of all steps, such as `0.1`, empty if it is not in percent."""
    warmup = job.train.schedule.warmup
    return number(float(warmup[:-1]) / 100) if warmup.endswith("%") else ""


def length_in_examples(job: Job) -> int:
    """The length of a run in examples, 0 if it is in epochs."""
    return job.train.examples or (job.train.steps or 0) * job.batch.global_batch


def length_in_steps(job: Job) -> int:
    """The length of a run in optimizer steps, rounded up, 0 if it is in epochs."""
    return job.train.steps or -(-(job.train.examples or 0) // job.batch.global_batch)


def truth(*, value: bool) -> str:
    """`true` or `false`, as Hydra and argparse read them."""
    return str(value).lower()
