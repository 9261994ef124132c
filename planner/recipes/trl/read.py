"""Reads the keys of TRL's and the alignment-handbook's recipes, from flat YAML or from options of their scripts.

`per_device_train_batch_size` is the micro-batch of one GPU. A recipe does not contain its global batch, m x A x GPUs,
so planner needs the GPU count. `trl_runs` has what TRL does with a recipe.
"""

from collections.abc import Container
from dataclasses import replace

from planner.recipes.drafting import (
    DATA_OF,
    RecipeOptions,
    finish,
    make_own,
)
from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.recipe import Draft, Note, Recipe
from planner.recipes.scalars import FALSE_TEXTS, TRUE_TEXTS, Unresolved, has_shell, number
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrlFacts
from planner.recipes.trainer.facts import facts_of
from planner.recipes.trainer.keys import ACCELERATOR_CONFIG
from planner.recipes.trainer.sizes import expand, sizes_of
from planner.recipes.trl import handbook_v03
from planner.recipes.trl.job import fill
from planner.recipes.trl.keys import METHODS, NO_SETTING, RULES
from planner.recipes.trl.loss import changing
from planner.recipes.trl.method import is_pretraining, method_of
from planner.recipes.trl.padding import padding_reasons
from planner.recipes.trl.unknown import refuse_unknown

# The values of loss_type that mean the method's own loss.
_PLAIN_LOSSES = {
    "sft": ("", "nll", "chunked_nll"),
    "dpo": ("", "sigmoid"),
    "kto": ("", "kto"),
}
# Methods whose loss differs from planner's objective of the same name, and the difference.
_ANOTHER_LOSS = {"orpo": "planner's orpo leaves the prompt out of its cross-entropy, TRL counts it"}
# DeepSpeed's name of a size -> the Trainer's.
_DEEPSPEED_NAMES = {"train_micro_batch_size_per_gpu": "per_device_train_batch_size"}
# Keys whose texts transformers takes for booleans.
_TRUTHS = (*RULES.of(value="truth"), *(f"accelerator_config.{name}" for name in ACCELERATOR_CONFIG.of(value="truth")))


def read(keys: KeyReader, options: RecipeOptions, *, script: str, launch: LaunchSettings | None) -> Recipe:
    """The recipe with the given keys. Notes mistakes in `keys`.

    Args:
        keys: the recipe's keys.
        options: the command line's options.
        script: the script that a command starts, empty for a file.
        launch: the launcher's settings, None if unknown.
    """
    refuse_unknown(keys)
    handbook_v03.rename(keys)
    expand(keys)
    _read_truths(keys)
    method, told_by = method_of(dict(keys.entries), script, keys.source, options.method)
    if method not in METHODS:
        found = f"found {method[:40]}" if method else "the recipe does not name it"
        keys.wrong(f"method: {found}. Write --method {', '.join(METHODS[:-1])} or {METHODS[-1]}")
        method = "sft"
    keys.method = method
    handbook_v03.add_defaults(keys, method)
    is_older = handbook_v03.is_older(keys.entries)
    if is_pretraining(script, keys.source, options.method):
        keys.lacks(
            f"{told_by}: convert makes no job for rows of plain text. Write one with data.kind jsonl, objective lm "
            "(planner init) and the global batch that planner check shows"
        )
    loss = _loss_of(keys, method)
    unit = "pair" if method in {"dpo", "orpo"} else "example" if method == "sft" else "completion"
    unit = "packed row" if keys.flag("packing") else unit
    sizes = sizes_of(keys, method, launch)
    gpus = _gpus(keys, options, launch)
    why_own = _own_because(keys, method, loss)
    facts = facts_of(keys, method, loss, unit, sizes, gpus, launch)
    _refuse_contradictions(keys, facts, launch)
    draft = Draft()
    draft.derived.append(Note(key="method", text=f"method {method}: {told_by}"))
    held = max(sizes.micro // gpus, 1) if sizes.splits else sizes.micro
    fill(draft, keys, options, facts, launch, held, is_own=bool(why_own))
    _ask_to_check(draft, facts)
    whose = "--gpus" if options.gpus else f"num_processes of {launch.source}" if launch else "--gpus"
    draft.derived.append(Note(key="gpus", text=f"tuned for {gpus} GPUs: {whose}"))
    finish(draft, keys, _reasons(keys, is_own=bool(why_own)), NO_SETTING)
    if why_own:
        shown = method if loss == method else f"{method} ({loss})"
        make_own(draft, shown, why_own, has_groups=method == "grpo")
    return Recipe(
        source=keys.source,
        method=method,
        unit=unit,
        global_batch=facts.batch,
        accumulation=sizes.accumulation,
        gpus=gpus,
        micro=held,
        eval_batch=None,
        draft=draft,
        foreign=facts,
        script=script or (f"run_{method}.py" if is_older else ""),
        config_first=is_older and not script,
    )


def _read_truths(keys: KeyReader) -> None:
    """Replaces texts such as `1` and `yes` by booleans, as transformers does."""
    entries = dict(keys.entries)
    for key in _TRUTHS:
        if not keys.has(key) or isinstance(entries[key].value, Unresolved | bool):
            continue
        text = str(keys.value(key)).lower()
        if text not in TRUE_TEXTS + FALSE_TEXTS:
            keys.refuse(key, "Write true or false")
        entries[key] = replace(entries[key], value=text in TRUE_TEXTS)
    keys.entries = entries


def _refuse_contradictions(keys: KeyReader, facts: TrlFacts, launch: LaunchSettings | None) -> None:
    """Notes contradictions that TRL would refuse at the recipe's own GPU count."""
    if launch and launch.clip is not None and launch.clip != (clip := keys.norm("max_grad_norm", 1.0) or 0.0):
        keys.lacks(
            f"max_grad_norm: {number(clip)}, but {launch.source} has gradient_clipping {number(launch.clip)}. Write "
            "the same number in both, or auto in that file"
        )
    other = facts.deepspeed.other(facts.tuned_gpus, facts.micro, facts.accumulation) if facts.deepspeed else None
    if facts.deepspeed and other:
        name, its, ours = other
        keys.lacks(
            f"{_DEEPSPEED_NAMES.get(name, name)}: {ours}, but {facts.deepspeed.source} has {its}. Write the same "
            "number in both, or auto in that file"
        )
    evaluated = facts.eval_micro * facts.tuned_gpus
    if facts.evaluates and facts.num_generations and evaluated % facts.eval_generations:
        keys.lacks(
            f"per_device_eval_batch_size: {facts.eval_micro} x {facts.tuned_gpus} GPUs are {evaluated}, no multiple of "
            f"num_generations {facts.eval_generations}. Write a size that makes one"
        )


def _ask_to_check(draft: Draft, facts: TrlFacts) -> None:
    """Adds what the user must check in files that are not on this machine."""
    if facts.unread:
        draft.ask(
            f"batch.global {facts.batch}: planner did not read {', '.join(facts.unread)} (not on this machine). It is "
            "right if no tp_size, cp_size or sp_size there is above 1"
        )


def _loss_of(keys: KeyReader, method: str) -> str:
    """The method if it has its own loss, else the loss_type."""
    loss = keys.value("loss_type")
    if isinstance(loss, list) and len(loss) == 1:
        loss = loss[0]
    named = "a list of losses" if isinstance(loss, list | dict) else str(loss or "")
    if method == "dpo" and named == "ipo":
        return "ipo"
    if named in _PLAIN_LOSSES.get(method, ("", named)):
        return method
    # Otherwise a loss_type of this method could be taken for a planner objective of the same name.
    return f"loss_type {named}" if named in DATA_OF else named


def _own_because(keys: KeyReader, method: str, loss: str) -> str:
    """Why no objective of planner's computes this loss, empty if one does."""
    if loss in _ANOTHER_LOSS:
        return _ANOTHER_LOSS[loss]
    if loss not in DATA_OF:
        named = loss if loss.startswith("loss_type ") else f"loss_type {loss}"
        return f"planner has no objective for {method}" + ("" if loss == method else f" with {named}")
    changed = [key for key, plain in changing(loss).items() if keys.has(key) and keys.value(key) not in plain]
    return f"planner has no objective for {loss} with {', '.join(changed)}" if changed else ""


def _gpus(keys: KeyReader, options: RecipeOptions, launch: LaunchSettings | None) -> int:
    """The GPU count that the recipe was tuned for, by `--gpus` or the launcher. 1 with a mistake noted if unknown."""
    said, option = launch.num_processes if launch else None, options.gpus_option
    if options.gpus and said and options.gpus != said:
        keys.wrong(
            f"{option} {options.gpus}: {launch.source if launch else ''} says num_processes {said}. Leave one of them "
            "out (convert --at is the count to write for, check --gpus has the counts to check)"
        )
    if not options.gpus and not said:
        keys.wrong(
            "the GPU count: a TRL recipe does not name it, and its global batch is GPUs x per_device_train_batch_size "
            f"x gradient_accumulation_steps. Write the count that it was tuned for ({option} W, or --accelerate FILE "
            "with num_processes)"
        )
    return options.gpus or said or 1


def leave_unresolved(keys: KeyReader) -> None:
    """Make values with `$NAME` on the command line `Unresolved`.

    A mistake is noted if the key affects training and no typed read would note it. Keys that are dropped may have any
    value.
    """
    entries, dropped = dict(keys.entries), _reasons(keys)
    for key, entry in keys.entries.items():
        text = " ".join(map(str, entry.value)) if isinstance(entry.value, list) else str(entry.value)
        if entry.where == COMMAND_LINE and (has_shell(text) or "${" in text):
            value = Unresolved(text, "a shell variable that is not set")
            entries[key] = replace(entry, value=value)
            if not _may_be_unset(keys, key, dropped):
                keys.unresolved(key, value, entry.where)
    keys.entries = entries


def _may_be_unset(keys: KeyReader, key: str, dropped: Container[str]) -> bool:
    """Whether a key may have any value: a typed read notes it, it is dropped, or only a job needs it."""
    unset = row.unset if (row := keys.rules.row(key)) else ""
    return unset == "free" or (unset == "job" and not keys.is_for_job) or (key in dropped and unset != "decides")


def _reasons(keys: KeyReader, *, is_own: bool = False) -> dict[str, str]:
    """The reason of every key that a job has no counterpart for, by its name or its prefix."""
    return {**keys.rules.reasons(keys.entries), **padding_reasons(keys, is_own=is_own)}
