"""Reads the command or the file of options of a script of the user's own: `--system trainer`.

Three numbers are enough for a verdict: per_device_train_batch_size, gradient_accumulation_steps and the GPU count. All
else that the script reads is its own, so a job of it needs the user's own training loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from planner.files.messages import cut
from planner.recipes.config_reader import RepeatedKey, beside, mapping_of, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.engine import refuse_values
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Draft, Recipe
from planner.recipes.scalars import has_shell
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.accelerate import read_launch
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import Dialect, NamedSets, Trained
from planner.recipes.trainer.keys import MICRO, NOT_NULL, STEPS, TRAINING_ARGUMENTS, section_of
from planner.recipes.trainer.launcher import is_alone, is_launched, launch_of, never_shards
from planner.recipes.trainer.recipe import leave_unresolved, read_truths, recipe_of
from planner.recipes.trainer.sizes import SPLITS, expand

VERSIONS = "in transformers 4.53 to 5.23"
_METHOD = "your script's loss"
_OLD_SIZE = "per_gpu_train_batch_size"
"""the name of m in older versions of transformers, where it wins over today's"""


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe of a script that hands its options, or a file of them, to `TrainingArguments`.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    command, repeats = found.command, list[RepeatedKey]()
    entries: dict[str, Entry] = flat(found.tree, found.source)
    config, arguments = _config_of(found.arguments) if command else ("", list(found.arguments))
    if config:
        entries |= flat(mapping_of(text_of(beside(found.source, config)), config, repeats), config)
    others = overrides(arguments, entries)
    keys = KeyReader(
        source=found.source, entries=entries, fix="--{} VALUE", is_for_job=options.is_for_job,
        rules=TRAINING_ARGUMENTS, versions=VERSIONS,
    )  # fmt: skip
    _refuse_sizes(keys)
    if command is None:
        keys.mistakes += [
            f"{cut(each)}: neither --key value nor key=value. Write one of these forms" for each in others
        ]
    leave_unresolved(keys, DIALECT)
    expand(keys)
    read_truths(keys)
    refuse_values(keys, DIALECT.title)
    keys.refuse_null("the Trainer", *NOT_NULL)
    options = replace(options, env={**(command.environment if command else {}), **options.env})
    if command:
        launch = launch_of(command, options, keys, found.source)
    else:
        launch = read_launch(options.accelerate) if options.accelerate else None
    trained = Trained(
        method=_METHOD, told_by="no key names it (--system trainer)", loss=_METHOD, unit="sample",
        why_own="planner does not know which model, data and loss your script has",
    )  # fmt: skip
    recipe = recipe_of(keys, options, trained, DIALECT, launch)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        launched = bool(options.accelerate) or (command is not None and is_launched(command))
        shards = keys.has("fsdp") or not (command and never_shards(command))
        alone = command is not None and is_alone(command)
        recipe = replace(recipe, foreign=replace(facts, is_launched=launched, is_alone=alone, may_shard=shards))
        if alone and facts.splits_batches:
            keys.refuse(SPLITS, "Python alone starts one process for all GPUs: start the script by torchrun")
    keys.raise_mistakes()
    return replace(
        recipe,
        script=command.script if command else "",
        script_path=command.path if command else "",
        arguments=tuple(found.arguments),
        environment=variables_of(options.env),
        repeats=tuple(each.note for each in repeats),
        open_arguments=tuple(each for each in others if has_shell(each)),
    )


def _config_of(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The file of options that a command names first or by `--config`, and the other arguments, which win over it."""
    rest = list(arguments)
    if rest and rest[0].endswith(YAML) and not rest[0].startswith("-"):
        return rest.pop(0), rest
    for at, argument in enumerate(rest):
        if argument == "--config" and at + 1 < len(rest):
            return rest[at + 1], rest[:at] + rest[at + 2 :]
        if argument.startswith("--config="):
            return argument.removeprefix("--config="), rest[:at] + rest[at + 1 :]
    return "", rest


def _refuse_sizes(keys: KeyReader) -> None:
    """Notes a recipe without sizes, and names that the Trainer or argparse may take for a size."""
    if not any(name in keys.entries for name in (MICRO, STEPS)):
        keys.wrong(
            f"found neither {MICRO} nor {STEPS}, of which the Trainer makes its batch. Write the file or the "
            "command that has them"
        )
    keys.mistakes += [
        f"{size}: found a section. Write a whole number"
        for size in (MICRO, STEPS)
        if any(name.startswith(f"{size}.") for name in keys.entries)
    ]
    for name in _own_keys(keys):
        near = get_close_matches(name, (MICRO, STEPS), n=1, cutoff=0.85) or [
            each for each in (MICRO, STEPS) if each.startswith(name)
        ]
        if near or name == _OLD_SIZE:
            size = near[0] if near else MICRO
            keys.wrong(f"{cut(name)}: some versions or parsers take it for {size}. Write {size}, or rename it")


def _own_keys(keys: KeyReader) -> list[str]:
    """The keys that `TrainingArguments` does not have, without sections."""
    outer = dict.fromkeys(name.partition(".")[0] for name in keys.entries if not section_of(name)[0])
    return [name for name in outer if keys.rules.row(name) is None]


def _set_model(draft: Draft, keys: KeyReader) -> None:
    draft.set("model", {})
    if own := _own_keys(keys):
        draft.ask(f"{', '.join(own)}: only your script knows what this does. planner read the Trainer's keys alone")


def _set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    del keys, facts
    draft.set("data", {})
    return NamedSets()


def _set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    raise NotImplementedError  # the loss is the script's


def _note_loss(draft: Draft, keys: KeyReader) -> None:
    del keys
    draft.set("objective", {})


def _set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    raise NotImplementedError  # the loop makes its micro-batches


DIALECT = Dialect(
    title="Trainer",
    set_model=_set_model,
    set_rows=_set_rows,
    set_objective=_set_objective,
    note_loss=_note_loss,
    set_padding=_set_padding,
    facts=lambda keys, facts: replace(facts, is_trl=False),  # noqa: ARG005
    reasons=lambda keys, is_own: dict.fromkeys(_own_keys(keys), "your script reads it"),  # noqa: ARG005
)
