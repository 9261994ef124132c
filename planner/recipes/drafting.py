"""Steps that the readers of all systems share to draft a planner job from a recipe."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.files.messages import cut
from planner.job import Train
from planner.job.objectives import OURS
from planner.plan.factory import MAX_GLOBAL_BATCH, MAX_MICRO
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Note
from planner.recipes.scalars import Unresolved, number, written

# Methods whose loss a planner objective computes as the recipe's system does. Any other needs the user's own loop.
DATA_OF = {"sft": "chat", **dict.fromkeys(("dpo", "ipo", "simpo"), "pairs"), "kto": "feedback"}
"""method -> the kind of data that its recipes have"""
_MOST_WORKERS = 64


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Command-line options beside the recipe."""

    gpus: int | None = None
    """the GPU count that the recipe was tuned for"""
    gpus_option: str = "--gpus"
    """the command's option for `gpus`, for errors"""
    max_micro: int | None = None
    accelerate: str | None = None
    """an accelerate file beside a TRL recipe"""
    halos_batch: str | None = None
    """total or per-accumulation"""
    method: str | None = None
    system: str | None = None
    """the system that reads the recipe, None if planner is to find it"""
    is_for_job: bool = True
    """whether to make a job. If not, the recipe needs only what concerns batches"""
    needs_micro: bool = True
    """whether the largest micro-batch of one GPU must be known"""
    env: Mapping[str, str] = field(default_factory=dict)
    """shell variables of a script, by name"""


def job_name(*candidates: Any) -> str:
    """The first candidate that gives a valid job name, in lower case. `recipe` if none does."""
    for candidate in candidates:
        if isinstance(candidate, str) and "$" not in candidate:
            name = re.sub(r"[^a-z0-9._-]+", "-", candidate.lower()).strip("._-")[:63].strip("._-")
            if name:
                return name
    return "recipe"


def set_batch(draft: Draft, keys: KeyReader, options: RecipeOptions, batch: int, micro: int | None, how: str) -> None:
    """Sets `batch.global` and `batch.max_micro`. Notes in `keys` if one is too large or unknown.

    Args:
        draft: the job in the making.
        keys: the recipe's keys, for mistakes.
        options: `max_micro` wins over `micro`.
        batch: samples of an optimizer step.
        micro: samples that one GPU held, None if unknown.
        how: the arithmetic of `batch`, for the list of derived values.
    """
    if batch > MAX_GLOBAL_BATCH:
        keys.wrong(f"batch.global: {how}, but planner takes up to {MAX_GLOBAL_BATCH}. Write smaller numbers")
        keys.raise_mistakes()
    draft.derive("batch.global", batch, f"batch.global {how}")
    most = options.max_micro or micro
    if most is None and not options.needs_micro:
        draft.set("batch.max_micro", min(batch, MAX_MICRO))
    elif most is None:
        keys.lacks(
            "batch.max_micro: the recipe names no GPU count, so planner does not know what one GPU held. Write "
            "--gpus W, the count that it ran on, or --max-micro M"
        )
    elif options.max_micro:
        draft.derive("batch.max_micro", most, f"batch.max_micro {most}: --max-micro")
    else:
        draft.derive("batch.max_micro", most, f"batch.max_micro {most}: the recipe's micro-batch of one GPU")
    draft.remarks["batch.global"] = "at every GPU count"


def note_padding(draft: Draft, padding: str) -> None:
    """Notes what padding costs. `padding`: how the recipe's system pads, as a sentence, empty if nothing avoids it."""
    draft.padding = padding
    if padding:
        text = (
            f"batch.max_tokens not set: {padding}. `planner plan JOB --lengths` shows what that costs, and "
            "batch.max_tokens avoids it with the same samples in each step"
        )
        draft.derived.append(Note(key="batch.max_tokens", text=text))


def set_workers(draft: Draft, batch: int, gpus: int | None) -> None:
    """Sets `workers.max` to 64, or to the recipe's GPU count if that is larger, but not above the batch."""
    most = min(max(_MOST_WORKERS, gpus or 1), batch)
    draft.derive("workers", {"max": most}, f"workers.max {most}: the batch is exact at every count up to it")


def names_of(value: Any) -> list[str]:
    """Names in a list or a single value, without those that contain shell variables."""
    values = value if isinstance(value, list) else [] if value is None or isinstance(value, Unresolved) else [value]
    return [str(each) for each in values if "$" not in str(each)]


def set_optimizer(draft: Draft, keys: KeyReader, values: Mapping[str, Any], from_keys: Mapping[str, str]) -> None:
    """Sets values of `train.optimizer`. `from_keys` has the recipe's key for those that are carried over."""
    for name, value in values.items():
        ours = f"train.optimizer.{name}"
        if foreign := from_keys.get(name):
            carry(draft, keys, foreign, ours, value)
        else:
            draft.set(ours, value)


def carry(draft: Draft, keys: KeyReader, foreign: str, ours: str, value: Any, *, whose: str = "in its system") -> None:
    """Sets a value that a key of the recipe gives, and notes it as carried over.

    Args:
        draft: the job in the making.
        keys: the recipe's keys. A key that is missing or a default is noted as derived instead.
        foreign: the recipe's key.
        ours: the job's key.
        value: the value for the job.
        whose: where the default comes from, such as "in TRL 0.19", if the key is missing.
    """
    entry = keys.entries.get(foreign)
    if entry is None or entry.is_default:
        how = f"{keys.shown(foreign)} of {entry.where}" if entry else f"the default of {keys.shown(foreign)} {whose}"
        draft.derive(ours, value, f"{ours} {plain(value)}: {how}")
    else:
        draft.carry(foreign, ours, value, plain(value))


def kind_of(method: str) -> str:
    """The kind of rows that a method learns from."""
    return OURS[method].samples[0].replace("texts", "chat") if method in OURS else "chat"


def whole_if(value: float) -> float:
    """`1.0` -> `1`. Other numbers are returned as they are."""
    return int(value) if float(value).is_integer() else value


def plain(value: Any) -> str:
    """A value as text on one line, cut after 120 characters."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(its)}" for key, its in value.items()) + "}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return f"[{', '.join(map(plain, value))}]"
    return cut(number(value) if isinstance(value, float) else written(value), 120)


def make_own(draft: Draft, method: str, why: str, *, has_groups: bool = False) -> None:
    """Turns a draft into a job with the user's own training loop.

    The job keeps its batch, length and cadences. Model, data, loss, optimizer and schedule move to the to-do list.

    Args:
        draft: the job in the making.
        method: what the loop computes.
        why: why no objective of planner's computes it.
        has_groups: whether the method compares the completions of a prompt, as GRPO does.
    """
    model, data, train = (draft.job.pop(name, {}) for name in ("model", "data", "train"))
    objective = draft.job.pop("objective", None)
    # Rows to evaluate have the form of those to train on, and that form is the loop's.
    evaluated = draft.job.pop("eval") if "data" in draft.job.get("eval", {}) else {}
    draft.remarks.pop("eval.samples", None)
    ordered = draft.job
    draft.job = {
        "name": ordered.pop("name", "recipe"),
        "model": {"kind": "own"},
        "data": {"kind": "own", "path": "my_loop.py"},
        "objective": "own",
        "batch": ordered.pop("batch", {}),
    }
    theirs = {
        name: train.pop(name)
        for name in ("schedule", "precision", "activation_checkpointing", "compile")
        if name in train
    }
    optimizer = train.pop("optimizer", None)
    draft.job["train"] = {**train, "optimizer": {"kind": "own"}}
    draft.job |= ordered
    draft.remarks["data.path"] = f"your training loop: it computes {method}"
    draft.remarks.pop("objective", None)
    draft.ask(f"{why}: write my_loop.py to compute the loss (docs/guides/your-own-loop.md)", at=0)
    if has_groups:
        draft.ask(
            "make each sample of dataset() a whole group, and divide batch.global by the group's size: planner would "
            "split a group of single completions over workers",
            at=1,
        )
    said = {"model": model, "data": data, "eval": evaluated, "objective": objective, "optimizer": optimizer}
    lines = [f"{name} {plain(value)}" for name, value in {**said, **theirs}.items() if value]
    if lines:
        draft.ask(f"what the loop must do itself: {'; '.join(lines)}", at=1)


def finish(draft: Draft, keys: KeyReader, reasons: Mapping[str, str], other: str) -> None:
    """Notes every key of which no note tells yet as dropped, so that `convert` lists every key.

    Args:
        draft: the job in the making.
        keys: the recipe's keys.
        reasons: why a key, or a section by its prefix, has no counterpart in a job.
        other: the reason for all other keys.
    """
    told = draft.told | {note.key for note in (*draft.carried, *draft.dropped)}
    for key, entry in keys.written():
        # A key that was read for a verdict or as a factor needs no note.
        if keys.was_read(key) and (key in told or key not in reasons):
            continue
        why = next((text for known, text in reasons.items() if key == known or key.startswith(f"{known}.")), other)
        value = entry.value
        if isinstance(value, Unresolved):
            draft.drop(key, f"{cut(value.text)} ({value.why}): {why}")
        elif value is not None:
            draft.drop(key, why)


def order_sections(draft: Draft) -> None:
    """Puts the draft's sections, and the keys of `train`, in the order of a job file."""
    order = ("name", "model", "data", "objective", "batch", "train", "eval", "workers", "checkpoint", "tracking")
    draft.job = {name: draft.job[name] for name in order if name in draft.job}
    train = draft.job["train"]
    draft.job["train"] = {name: train[name] for name in Train.model_fields if name in train}
