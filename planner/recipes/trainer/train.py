"""Drafts a job's train and eval sections from the keys of a recipe on the Trainer."""

from typing import Any

from planner.files.messages import cut
from planner.recipes.drafting import carry, kind_of
from planner.recipes.drafting_data import set_test_rows
from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.scalars import number
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import NamedSets
from planner.recipes.trainer.facts import default_logging

_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}


def set_optimizer(draft: Draft, keys: KeyReader, *, is_own: bool, whose: str) -> None:
    """Sets `train.optimizer`. For the user's own loop (`is_own`) it may be any optimizer.

    `whose` names who makes the recipe's optimizer.
    """
    _set_kind(draft, keys, is_own=is_own)
    if keys.value("adafactor") is True:
        keys.refuse_in_job(
            "adafactor", "planner has no Adafactor: remove it only if AdamW, which trains differently, will do"
        )
    carried(draft, keys, "learning_rate")
    if keys.has("weight_decay"):
        carried(draft, keys, "weight_decay")
        if keys.number("weight_decay"):
            draft.ask(
                f"train.optimizer.weight_decay: in {whose} biases and norms do not decay, in planner all weights do"
            )
    _set_adam(draft, keys)


def _set_adam(draft: Draft, keys: KeyReader) -> None:
    """Sets betas and eps, which only Adam takes. transformers passes neither to another optimizer."""
    if draft.job["train"]["optimizer"].get("kind") in {"sgd", "rmsprop"}:
        for key in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            if keys.value(key) is not None:
                draft.drop(key, "only Adam takes it")
        return
    if keys.has("adam_beta1") or keys.has("adam_beta2"):
        betas = [keys.read("adam_beta1"), keys.read("adam_beta2")]
        draft.derive("train.optimizer.betas", betas, f"train.optimizer.betas {betas}: adam_beta1, adam_beta2")
    carried_if_set(draft, keys, "adam_epsilon")


def _set_kind(draft: Draft, keys: KeyReader, *, is_own: bool) -> None:
    name = str(keys.read("optim"))
    if name in {"sgd", "rmsprop"}:
        carry(draft, keys, "optim", "train.optimizer.kind", name)
    elif name.startswith(("adamw", "paged_adamw")):
        carry(draft, keys, "optim", "train.optimizer.kind", "adamw", whose=keys.versions)
        if "bit" in name or "paged" in name or "anyprecision" in name:
            draft.drop(
                "optim", f"{name} keeps its state in fewer bits or on the CPU, planner in fp32 shards", is_trained=True
            )
    elif is_own:
        draft.derive("train.optimizer.kind", name, f"train.optimizer.kind {name}: optim, for your loop")
    else:
        keys.refuse_in_job(
            "optim",
            "planner has adamw, rmsprop and sgd: write one of them only if a run that trains differently will do",
        )
    if is_own and keys.has("optim_args"):
        draft.set("train.optimizer.args", keys.value("optim_args"))
    elif keys.has("optim_args"):
        keys.refuse_in_job("optim_args", "Write its values as adam_beta1, adam_beta2, adam_epsilon and weight_decay")


def set_schedule(draft: Draft, keys: KeyReader, facts: TrainerFacts, *, is_own: bool) -> None:
    """Sets `train.schedule`. For the user's own loop (`is_own`) it may be any schedule."""
    name = str(keys.read("lr_scheduler_type"))
    if name not in _SCHEDULES and not is_own:
        keys.refuse_in_job(
            "lr_scheduler_type",
            f"planner has {', '.join(_SCHEDULES)}: write one of them only if a run that trains differently will do",
        )
    kind = _SCHEDULES.get(name, name)
    schedule: dict[str, Any] = {"kind": kind, "warmup": facts.warmup}
    key = keys.shown("lr_scheduler_type")
    text = f"train.schedule {kind}: {key} {name}, warmup {facts.warmup} ({keys.shown(facts.warmup_key)})"
    if name == "constant":
        schedule["warmup"], text = (
            "0 steps",
            f"train.schedule constant: {key} constant has no warmup in the Trainer",
        )
    if name == "cosine_with_min_lr":
        fraction = keys.number("lr_scheduler_kwargs.min_lr_rate", 0.0)
        if not fraction and keys.has("lr_scheduler_kwargs.min_lr"):
            fraction = keys.number("lr_scheduler_kwargs.min_lr") / (keys.number("learning_rate", 0.0) or 1.0)
        schedule["final_fraction"] = fraction
        text += f", down to {number(fraction)} of the rate (lr_scheduler_kwargs)"
    draft.derive("train.schedule", schedule, text)


def set_precision(draft: Draft, keys: KeyReader, launch: LaunchSettings | None) -> None:
    """Sets `train.precision` from the recipe's key, else from the launcher, else from the system's default."""
    launched = launch.mixed_precision if launch else ""
    if keys.value("fp16") is True:
        precision, why = "bf16", "the recipe's fp16, for which planner has bf16"
    elif keys.value("bf16") is True:
        precision, why = "bf16", f"{keys.shown('bf16')} is true"
    elif launch and launched in {"bf16", "fp16"}:
        precision, why = "bf16", f"mixed_precision {launched} of {launch.source}"
    elif keys.has("bf16"):
        precision, why = "fp32", "bf16 is false"
    else:
        row = keys.rules.of_key("bf16")
        precision = "bf16" if row is None or row.default else "fp32"
        why = f"bf16 is not set, and {row.note if row else 'its default is true'}"
    draft.derive("train.precision", precision, f"train.precision {precision}: {why}")


def set_eval(draft: Draft, keys: KeyReader, facts: TrainerFacts, named: NamedSets) -> None:
    """Sets the eval section: rows held out of training, or a test split of its own."""
    held = _held_out(keys, named)
    if not facts.evaluates and not held:
        return
    if held:
        text = f"eval.samples {held}: {named.held_key}, held out of the rows"
        draft.derive("eval.samples", held, text, named.held_key)
    elif set_test_rows(draft, kind_of(facts.method), named.test, 0, _why_evaluated(keys)):
        draft.told.add("dataset_test_split")
    else:
        draft.set("eval.samples", 0)
        draft.ask(_no_test_rows(named))
    if not facts.evaluates:
        why = "the recipe does not evaluate, but its script takes those rows out of training"
        draft.derive("eval.every", "1 epoch", f"eval.every 1 epoch: {why}")
        return
    told = ", ".join(dict.fromkeys(map(keys.shown, ("eval_strategy", "eval_steps"))))
    if facts.eval_every != "1 epoch" and not keys.has("eval_steps"):
        told = (
            "logging_steps"
            if keys.has("logging_steps")
            else f"logging_steps, {number(default_logging(keys))} by default {keys.versions}"
        )
        told += ", because eval_steps is not set"
    draft.derive("eval.every", facts.eval_every, f"eval.every {facts.eval_every}: {told}")


def _held_out(keys: KeyReader, named: NamedSets) -> int | str:
    """How many rows the recipe holds out, or which part as `5%`. 0 if none."""
    size = keys.value(named.held_key) if named.held_key else None
    if size is None:
        return 0
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    if isinstance(size, float) and 0 < size < 1:
        return f"{number(round(size * 100, 6))}%"
    if isinstance(size, float) and size > 1 and size.is_integer():
        return int(size)
    keys.refuse_in_job(named.held_key, "Write a number of rows, or a part between 0 and 1")
    return 0


def _why_evaluated(keys: KeyReader) -> str:
    key = "dataset_test_split" if keys.has("dataset_test_split") else "eval_strategy"
    return f"the split that the recipe evaluates ({key})"


def _no_test_rows(named: NamedSets) -> str:
    """What the user decides where planner does not find the rows that the recipe evaluates."""
    held = "eval.samples: write how many training rows to hold out"
    if not named.test:
        return f"{held}. The recipe evaluates (eval_strategy) and names no rows for it"
    shown = ", ".join(f"{each.name} ({each.wanted_split})" for each in named.test)
    return f"{held}, or eval.data. The recipe evaluates {cut(shown, 200)}, which planner does not find there"
