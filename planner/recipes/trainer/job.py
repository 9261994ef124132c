"""Drafts a job from the keys of a recipe that transformers' Trainer trains."""

import re
from math import sqrt
from pathlib import PurePath
from typing import Any

from planner.job.compute import FLASH
from planner.recipes.drafting import RecipeOptions, carry, job_name, order_sections, set_batch, set_workers, whole_if
from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Note, product
from planner.recipes.scalars import number
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import Dialect
from planner.recipes.trainer.keys import MICRO, STEPS
from planner.recipes.trainer.peft_targets import default_targets
from planner.recipes.trainer.trackers import set_trackers
from planner.recipes.trainer.train import set_eval, set_optimizer, set_precision, set_schedule

_QUANTIZED = re.compile(r"(?i)[-_](awq|gptq|aqlm|gguf|int[48])\b")
"""ends names of models on the hub whose weights are quantized"""


def fill(
    draft: Draft,
    keys: KeyReader,
    options: RecipeOptions,
    facts: TrainerFacts,
    dialect: Dialect,
    launch: LaunchSettings | None,
    held: int,
    *,
    is_own: bool,
) -> None:
    """Set every value of the job, with a note for each.

    Args:
        draft: the job in the making, which changes.
        keys: the recipe's keys. Mistakes are added to it.
        options: the command line's options.
        facts: the settings on which the verdicts depend.
        dialect: what the recipe's system does in its own way.
        launch: the launcher's settings, None if unknown.
        held: samples that one GPU held.
        is_own: whether the user's own loop computes the loss.
    """
    names = (dialect.title.lower(), facts.method)
    _set_name(draft, keys, "-".join(name for name in names if " " not in name))
    dialect.set_model(draft, keys)
    named = dialect.set_rows(draft, keys, facts)
    if is_own:
        dialect.note_loss(draft, keys)
    else:
        dialect.set_objective(draft, keys, facts)
    _set_batch(draft, keys, options, facts, held)
    if not is_own:
        dialect.set_padding(draft, keys, facts)
    if facts.max_steps:
        carry(draft, keys, "max_steps", "train.steps", facts.max_steps, whose=keys.versions)
        keys.value("num_train_epochs")
    else:
        carry(draft, keys, "num_train_epochs", "train.epochs", whole_if(facts.epochs or 3.0), whose=keys.versions)
    carried(draft, keys, "seed")
    set_optimizer(draft, keys, is_own=is_own, whose="TRL" if facts.is_trl else "the Trainer")
    set_schedule(draft, keys, facts, is_own=is_own)
    clips = "max_grad_norm" not in keys.entries or keys.has("max_grad_norm")
    clip = keys.read("max_grad_norm") if clips else None
    carry(draft, keys, "max_grad_norm", "train.clip_norm", clip, whose=keys.versions)
    set_precision(draft, keys, launch)
    _set_compute(draft, keys)
    set_eval(draft, keys, facts, named)
    set_workers(draft, facts.batch, facts.tuned_gpus)
    set_trackers(draft, keys, options.env)
    order_sections(draft)


def _set_name(draft: Draft, keys: KeyReader, default: str) -> None:
    names = {key: PurePath(str(keys.value(key, ""))).name for key in ("run_name", "hub_model_id", "output_dir")}
    told = next((key for key, name in names.items() if name), "the method" if "-" in default else "the system")
    name = job_name(*names.values(), default)
    draft.derive("name", name, f"name {name}: {keys.shown(told)}", told)


def _set_batch(draft: Draft, keys: KeyReader, options: RecipeOptions, facts: TrainerFacts, held: int) -> None:
    how = product(facts.replicas(facts.tuned_gpus), facts.micro, facts.accumulation, facts.batch)
    if facts.splits_batches:
        how = f"{facts.batch} = {facts.micro} x {facts.accumulation}: split_batches counts over all GPUs"
    set_batch(draft, keys, options, facts.batch, held, how)
    for key in (MICRO, STEPS):
        keys.value(key)


def _set_attention(draft: Draft, keys: KeyReader) -> None:
    """Sets `model.attention`, which depends on the precision."""
    name = keys.scalar_text("attn_implementation")
    if name == FLASH and draft.job["train"]["precision"] == "fp32":
        draft.drop("attn_implementation", f"{name} computes in bf16, and train.precision is fp32")
    elif name in {"sdpa", "eager", FLASH}:
        carry(draft, keys, "attn_implementation", "model.attention", name)
    elif name:
        draft.drop("attn_implementation", f"{name}: planner has sdpa, eager and {FLASH}, and chooses one (auto)")


def _set_compute(draft: Draft, keys: KeyReader) -> None:
    _set_attention(draft, keys)
    key = "gradient_checkpointing"
    if keys.value(key) is True:
        carry(draft, keys, key, "train.activation_checkpointing", True)
    elif not keys.has(key) and (unset := keys.rules.of_key(key)) and unset.note:
        text = f"train.activation_checkpointing off: {keys.shown(key)} is not set ({unset.note})"
        draft.derived.append(Note(key=keys.shown(key), text=f"{text}. It changes only memory"))
    if keys.value("torch_compile") is True:
        if "frozen" in draft.job["model"]:
            draft.drop("torch_compile", "planner does not compile 4-bit weights. It changes only speed")
        else:
            carry(draft, keys, "torch_compile", "train.compile", "blocks")


def set_path(draft: Draft, keys: KeyReader) -> None:
    """Sets `model.path`, its revision and the context, as the keys say."""
    draft.set("model.kind", "hf")
    carried(draft, keys, "model_name_or_path")
    if found := _QUANTIZED.search(str(keys.value("model_name_or_path"))):
        draft.ask(
            f"model.path: its name says that its weights are quantized ({found[1]}), and planner trains none of that "
            "kind. Write the model that it was made of",
            of_model=True,
        )
    carried_if_set(draft, keys, "model_revision")
    carried(draft, keys, "max_length")


# -- adapters, as peft has them


def set_lora(draft: Draft, keys: KeyReader, *, is_trl: bool = True) -> None:
    """Sets `model.lora` and `model.frozen` by the keys that start with `lora_` and `load_in_`.

    `is_trl` says whether TRL reads them: the model may then be a folder of adapters, and one target is a pattern.
    """
    rank, alpha, how = keys.read("lora_r"), keys.read("lora_alpha"), ""
    if keys.flag("use_rslora"):
        how = f" ({number(alpha)} x sqrt({rank}): use_rslora scales by alpha / sqrt(rank), planner by alpha / rank)"
        alpha *= sqrt(rank)
    lora: dict[str, Any] = {"rank": rank, "alpha": alpha, "dropout": keys.read("lora_dropout")}
    targets, whose = _lora_targets(draft, keys, is_trl=is_trl)
    if targets:
        lora["targets"] = targets
    shown = (", ".join(targets) or "all linear layers but the head") + whose
    draft.derive("model.lora", lora, f"model.lora rank {rank}, alpha {number(alpha)}{how}, on {shown}")
    for name in ("use_dora", "lora_modules_to_save", "lora_target_parameters"):
        if keys.value(name):
            keys.refuse_in_job(name, "planner trains only plain low-rank adapters: remove it if you want those")
    for name in ("load_in_4bit", "load_in_8bit"):
        if keys.value(name) is True:
            _set_frozen(draft, keys, name)
            if is_trl:
                _ask_to_merge(draft, keys, name)


def _ask_to_merge(draft: Draft, keys: KeyReader, name: str) -> None:
    draft.ask(
        f"model.path: {keys.shown(name)} often continues adapters of an earlier run. If "
        f"{keys.value('model_name_or_path')} is a folder of adapters, merge them into their base model and "
        "write the merged one",
        of_model=True,
    )


def _set_frozen(draft: Draft, keys: KeyReader, name: str) -> None:
    """How frozen weights are stored, by `load_in_4bit` or `load_in_8bit`. bitsandbytes leaves the head out, too."""
    kind, shown = keys.text("bnb_4bit_quant_type", "nf4"), keys.shown(name)
    if name == "load_in_4bit":
        draft.told.add("bnb_4bit_quant_type")
    if name != "load_in_4bit" or kind != "nf4":
        what = "" if name != "load_in_4bit" else f"with bnb_4bit_quant_type {kind}: "
        draft.drop(name, f"{what}planner stores frozen weights in fp32 or nf4. fp32 takes more memory", is_trained=True)
        return
    draft.derive("model.frozen", "nf4", f"model.frozen nf4: {shown}, with bnb_4bit_quant_type nf4")
    if keys.flag("use_bnb_nested_quant"):
        draft.drop("use_bnb_nested_quant", "planner keeps the scales in float32, which takes 0.4 bits per weight more")


def _lora_targets(draft: Draft, keys: KeyReader, *, is_trl: bool) -> tuple[list[str], str]:
    """The layers that get adapters (empty for all linear layers), and whose choice they are if not the recipe's.

    A single name is refused in TRL, because peft takes it as a pattern of whole names.
    """
    found = keys.value("lora_target_modules")
    names = [str(each) for each in found] if isinstance(found, list) else [str(found)] if found else []
    if names == ["all-linear"]:
        return [], ""
    if not names:
        return _default_targets(draft, keys)
    if len(names) == 1 and is_trl:
        keys.refuse_in_job("lora_target_modules", "Write two or more names as a list in the file, or all-linear")
    return names, ""


def _default_targets(draft: Draft, keys: KeyReader) -> tuple[list[str], str]:
    """The layers that peft chooses for the model's family, with the reason. A mistake is noted if it is unknown."""
    model = keys.value("model_name_or_path")
    targets, whose = default_targets(model) if isinstance(model, str) else ((), "")
    if not targets:
        key = keys.shown("lora_target_modules")
        keys.lacks(
            f"{key}: found nothing, and neither config.json nor the model's name tells the family, on "
            f"which peft's choice depends. Write the layers' names in the recipe, or {key}=all-linear"
        )
        return [], ""
    draft.ask(
        f"model.lora.targets {', '.join(targets)}: {whose}. Write others if the model is of another family",
        of_model=True,
    )
    return list(targets), f": {whose}"
