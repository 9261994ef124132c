"""Reads recipes of TRL and the alignment-handbook: a flat file, or a command with options and a file of them."""

from collections.abc import Iterable
from dataclasses import replace

from planner.files.messages import cut
from planner.recipes.command import Command
from planner.recipes.config_reader import RepeatedKey, beside, mapping_of, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.source import RecipeSource
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.launcher import is_alone, is_launched, launch_of, never_shards
from planner.recipes.trainer.recipe import leave_unresolved
from planner.recipes.trainer.sizes import SPLITS
from planner.recipes.trl.arguments import config_of, first_of, is_file_name, open_arguments
from planner.recipes.trl.dialect import DIALECT, recipe_from
from planner.recipes.trl.keys import RULES, VERSIONS


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    return _of_command(found, found.command, options) if found.command else _of_file(found, options)


def _of_file(found: RecipeSource, options: RecipeOptions) -> Recipe:
    entries = flat(found.tree, found.source)
    others = overrides(found.arguments, entries)
    keys = KeyReader(
        source=found.source, entries=entries, is_for_job=options.is_for_job, rules=RULES, versions=VERSIONS
    )
    keys.mistakes += [_no_override(argument) for argument in others]
    launch = read_launch(options.accelerate) if options.accelerate else None
    recipe = recipe_from(keys, options, script="", launch=launch)
    if launch and isinstance(facts := recipe.foreign, TrainerFacts):
        recipe = replace(recipe, foreign=replace(facts, is_launched=True))
    keys.raise_mistakes()
    # As options of the recipe's own command, they win over its file.
    arguments = tuple(_as_option(argument) for argument in found.arguments)
    return replace(
        recipe,
        arguments=arguments,
        config=found.source,
        environment=variables_of(options.env),
        repeats=_notes(found.repeats, launch),
    )


def _notes(repeats: Iterable[RepeatedKey], launch: LaunchSettings | None) -> tuple[str, ...]:
    """Notes on the keys that the recipe's or the launcher's file has twice."""
    return (*(each.note for each in repeats), *(launch.repeats if launch else ()))


def _as_option(argument: str) -> str:
    return f"--{argument.lstrip('+')}" if "=" in argument and not argument.startswith("-") else argument


def _no_override(argument: str) -> str:
    return f"{cut(argument)}: neither --key value nor key=value. Write one of these forms"


def _of_command(found: RecipeSource, command: Command, options: RecipeOptions) -> Recipe:
    entries: dict[str, Entry] = {}
    arguments = list(found.arguments)
    config = config_of(arguments, found.source)
    config_first = not config and bool(arguments) and is_file_name(arguments[0])
    if config_first:
        config = first_of(arguments, command.script, found.source)
    written = tuple(arguments)
    options = replace(options, env={**command.environment, **options.env})
    repeats: list[RepeatedKey] = []
    if config:
        tree = mapping_of(text_of(beside(found.source, config)), config, repeats)
        entries |= flat(tree, config)
    others = overrides(arguments, entries)
    keys = KeyReader(
        source=config or found.source,
        entries=entries,
        fix="--{} VALUE",
        is_for_job=options.is_for_job,
        rules=RULES,
        versions=VERSIONS,
    )
    keys.mistakes += [_no_override(argument) for argument in others if "$" not in argument]
    leave_unresolved(keys, DIALECT)
    launch = launch_of(command, options, keys, found.source)
    recipe = recipe_from(keys, options, script=command.script, launch=launch)
    recipe = replace(recipe, script_path=command.path)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        alone = is_alone(command)
        launched = is_launched(command) or bool(options.accelerate)
        shards = keys.has("fsdp") or not never_shards(command)
        recipe = replace(recipe, foreign=replace(facts, is_alone=alone, is_launched=launched, may_shard=shards))
        if alone and facts.splits_batches:
            keys.refuse(SPLITS, "Python alone starts one process for all GPUs: start the script by accelerate launch")
    for argument in others:
        recipe.draft.drop(cut(argument), "arguments in a variable that is not set. --env NAME=VALUE sets it")
    keys.raise_mistakes()
    return replace(
        recipe,
        arguments=written,
        config=config,
        config_first=config_first,
        environment=variables_of(options.env),
        repeats=_notes(repeats, launch),
        open_arguments=tuple(dict.fromkeys([*open_arguments(written), *others])),
    )
