"""Makes the `Recipe` of keys that transformers' Trainer trains, in the dialect of their system.

`per_device_train_batch_size` is the micro-batch of one GPU. A recipe does not contain its global batch, m x A x GPUs,
so planner needs the GPU count. `batching` has what the Trainer does with it at each count.
"""

from collections.abc import Container, Mapping
from dataclasses import replace

from planner.recipes.drafting import RecipeOptions, finish, make_own
from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.recipe import Draft, Note, Recipe
from planner.recipes.rule import NO_SETTING
from planner.recipes.scalars import FALSE_TEXTS, TRUE_TEXTS, Unresolved, has_shell, number
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import Dialect, Trained
from planner.recipes.trainer.facts import facts_of
from planner.recipes.trainer.job import fill
from planner.recipes.trainer.keys import ACCELERATOR_CONFIG, MICRO, STEPS
from planner.recipes.trainer.sizes import sizes_of

# DeepSpeed's name of a size -> the Trainer's.
_DEEPSPEED_NAMES = {"train_micro_batch_size_per_gpu": MICRO}


def recipe_of(
    keys: KeyReader, options: RecipeOptions, trained: Trained, dialect: Dialect, launch: LaunchSettings | None
) -> Recipe:
    """The recipe with the given keys. Notes mistakes in `keys`.

    Args:
        keys: the recipe's keys, under the Trainer's names.
        options: the command line's options.
        trained: what the recipe trains.
        dialect: what its system does in its own way.
        launch: the launcher's settings, None if unknown.
    """
    sizes = sizes_of(keys, trained.method, launch)
    gpus = _gpus(keys, options, launch, dialect.title)
    facts = replace(facts_of(keys, trained, sizes, gpus, launch), least_transformers=dialect.least_transformers)
    facts = dialect.facts(keys, facts)
    _refuse_contradictions(keys, facts, launch)
    draft = Draft()
    draft.derived.append(Note(key="method", text=f"method {trained.method}: {trained.told_by}"))
    held = max(sizes.micro // gpus, 1) if sizes.splits else sizes.micro
    is_own = bool(trained.why_own)
    fill(draft, keys, options, facts, dialect, launch, held, is_own=is_own)
    _ask_to_check(draft, facts)
    counted = (launch.counted_by or f"num_processes of {launch.source}") if launch else ""
    whose = "--gpus" if options.gpus or not counted else counted
    draft.derived.append(Note(key="gpus", text=f"tuned for {gpus} GPUs: {whose}"))
    finish(draft, keys, reasons_of(keys, dialect, is_own=is_own), NO_SETTING)
    if is_own:
        shown = trained.method if trained.loss == trained.method else f"{trained.method} ({trained.loss})"
        make_own(draft, shown, trained.why_own, has_groups=trained.method == "grpo")
    _name_as_written(draft, keys)
    return Recipe(
        source=keys.source,
        method=trained.method,
        unit=trained.unit,
        global_batch=facts.batch,
        accumulation=sizes.accumulation,
        gpus=gpus,
        micro=held,
        eval_batch=None,
        draft=draft,
        foreign=facts,
    )


def read_truths(keys: KeyReader) -> None:
    """Replaces texts such as `1` and `yes` by booleans, as transformers does."""
    inner = (f"accelerator_config.{name}" for name in ACCELERATOR_CONFIG.of(value="truth"))
    entries = dict(keys.entries)
    for key in (*(row.into or row.name for row in keys.rules if row.value == "truth"), *inner):
        if not keys.has(key) or isinstance(entries[key].value, Unresolved | bool):
            continue
        text = str(keys.value(key)).lower()
        if text not in TRUE_TEXTS + FALSE_TEXTS:
            keys.refuse(key, "Write true or false")
        entries[key] = replace(entries[key], value=text in TRUE_TEXTS)
    keys.entries = entries


def leave_unresolved(keys: KeyReader, dialect: Dialect) -> None:
    """Make values with `$NAME` on the command line `Unresolved`.

    A mistake is noted if the key affects training and no typed read would note it. Keys that are dropped may have any
    value.
    """
    entries, dropped = dict(keys.entries), reasons_of(keys, dialect, is_own=False)
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


def reasons_of(keys: KeyReader, dialect: Dialect, *, is_own: bool) -> Mapping[str, str]:
    """The reason of every key that a job has no counterpart for, by its name or its beginning."""
    return {**keys.rules.reasons(keys.entries), **dialect.reasons(keys, is_own=is_own)}


def _refuse_contradictions(keys: KeyReader, facts: TrainerFacts, launch: LaunchSettings | None) -> None:
    """Notes contradictions that the Trainer would refuse at the recipe's own GPU count."""
    if launch and launch.clip is not None and launch.clip != (clip := keys.read("max_grad_norm") or 0.0):
        keys.lacks(
            f"{keys.shown('max_grad_norm')}: {number(clip)}, but {launch.source} has gradient_clipping "
            f"{number(launch.clip)}. Write the same number in both, or auto in that file"
        )
    other = facts.deepspeed.other(facts.tuned_gpus, facts.micro, facts.accumulation) if facts.deepspeed else None
    if facts.deepspeed and other:
        name, its, ours = other
        keys.lacks(
            f"{keys.shown(_DEEPSPEED_NAMES.get(name, name))}: {ours}, but {facts.deepspeed.source} has {its}. Write "
            "the same number in both, or auto in that file"
        )
    evaluated = facts.eval_micro * facts.tuned_gpus
    if facts.evaluates and facts.num_generations and evaluated % facts.eval_generations:
        key = keys.shown("per_device_eval_batch_size")
        keys.lacks(
            f"{key}: {facts.eval_micro} x {facts.tuned_gpus} GPUs are {evaluated}, no multiple of "
            f"num_generations {facts.eval_generations}. Write a size that makes one"
        )


def _ask_to_check(draft: Draft, facts: TrainerFacts) -> None:
    """Adds what the user must check in files that are not on this machine."""
    if facts.unread:
        draft.ask(
            f"batch.global {facts.batch}: planner did not read {', '.join(facts.unread)} (not on this machine). It is "
            "right if no tp_size, cp_size or sp_size there is above 1"
        )


def _gpus(keys: KeyReader, options: RecipeOptions, launch: LaunchSettings | None, title: str) -> int:
    """The GPU count that the recipe was tuned for, by `--gpus` or the launcher. 1 with a mistake noted if unknown."""
    said, option = launch.num_processes if launch else None, options.gpus_option
    if options.gpus and said and options.gpus != said:
        counted = f"{launch.source} says num_processes {said}" if launch else ""
        counted = f"{launch.counted_by} is {said}" if launch and launch.counted_by else counted
        keys.wrong(
            f"{option} {options.gpus}: {counted}. Leave one of them out (convert --at is the count to write for, check "
            "--gpus has the counts to check)"
        )
    if not options.gpus and not said:
        micro, steps = keys.shown(MICRO), keys.shown(STEPS)
        an = "an" if title[0] in "aeiou" else "a"
        keys.wrong(
            f"the GPU count: {an} {title} recipe does not name it, and its global batch is GPUs x {micro} x "
            f"{steps}. Write the count that it was tuned for ({option} W, or --accelerate FILE with num_processes)"
        )
    return options.gpus or said or 1


def _name_as_written(draft: Draft, keys: KeyReader) -> None:
    """Puts the recipe's own names into the notes of a system that has other names than the Trainer."""
    for notes in (draft.carried, draft.dropped):
        notes[:] = [replace(note, key=keys.shown(note.key)) for note in notes]
