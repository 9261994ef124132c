"""TRL and the alignment-handbook as a `System`: their flat YAML, and commands that start TRL's scripts."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from planner.base.text import enumerated
from planner.errors import RecipeError
from planner.files.messages import cut
from planner.recipes.command import HYDRA_SCRIPTS, Command, other_of_trl
from planner.recipes.config_reader import RepeatedKey, beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import has_shell, shell_names
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.system import System, later
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.launcher import is_alone, is_launched, launch_of, never_shards
from planner.recipes.trainer.recipe import leave_unresolved
from planner.recipes.trainer.sizes import SPLITS
from planner.recipes.trl import read as trl
from planner.recipes.trl import unknown as trl_unknown
from planner.recipes.trl.keys import ALONE, METHODS, RULES, VERSIONS

# Together with `model_name_or_path`, one of these marks a TRL recipe that leaves the batch to TRL's defaults.
_BESIDE_A_MODEL = ("gradient_accumulation_steps", "dataset_name", "dataset_mixture", "dataset_mixer")


def detect(found: RecipeSource) -> bool:
    """Whether a file has the keys of a TRL recipe, or a command starts a script of TRL."""
    if found.command:
        return found.command.script not in HYDRA_SCRIPTS
    tree = found.tree
    has_model = "model_name_or_path" in tree and not tree.keys().isdisjoint(_BESIDE_A_MODEL)
    return "per_device_train_batch_size" in tree or has_model


def another_system(found: RecipeSource) -> str:
    """What a recipe is that `detect` would take for TRL's, but whose keys are of another system. Else an empty text."""
    if not detect(found):
        return ""
    entries = flat(found.tree, found.source)
    if found.command:
        arguments = list(found.arguments)
        with suppress(RecipeError):  # `read` refuses a variable as the file's name
            _config_of(arguments, found.source)
        overrides(arguments, entries)
    return trl_unknown.another_system(entries)


def near_miss(found: RecipeSource) -> str:
    """The reason if the recipe is a `trl` command that planner does not read, else an empty text."""
    other = other_of_trl(found.text) if found.kind == "text" else ""
    return f"found trl {cut(other)}. planner reads trl {enumerated(METHODS)}" if other else ""


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
    recipe = trl.read(keys, options, script="", launch=launch)
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
    config = _config_of(arguments, found.source)
    config_first = not config and bool(arguments) and _is_file_name(arguments[0])
    if config_first:
        config = _first_of(arguments, command.script, found.source)
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
    leave_unresolved(keys, trl.DIALECT)
    launch = launch_of(command, options, keys, found.source)
    recipe = trl.read(keys, options, script=command.script, launch=launch)
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
        open_arguments=tuple(dict.fromkeys([*_open_arguments(written), *others])),
    )


def _open_arguments(written: Sequence[str]) -> list[str]:
    """Those arguments of a command that may be any options, such as `$ARGS` and `$@`."""
    return [
        argument
        for before, argument in zip(("", *written), written, strict=False)
        if argument.startswith(("$", "`")) and has_shell(argument) and not _takes_value(before)
    ]


def _takes_value(option: str) -> bool:
    """Whether the word behind an option is its value. A boolean option stands alone, too."""
    key = option.removeprefix("--").replace("-", "_")
    return option.startswith("--") and "=" not in option and key not in ALONE and not key.startswith("no_")


def _is_file_name(argument: str) -> bool:
    return argument.endswith(YAML) and not argument.startswith("-")


def _first_of(arguments: list[str], script: str, source: str) -> str:
    """Removes the file that the older handbook's scripts take as their first argument, and returns its name.

    Raises:
        RecipeError: the script is TRL's, which needs `--config` before the file.
    """
    if script.startswith("run_"):
        return _named(arguments.pop(0), source)
    file = cut(arguments[0])
    raise recipe_error(source, f"found {file} without --config, which TRL needs before it. Write --config {file}")


def _config_of(arguments: list[str], source: str) -> str:
    """Removes `--config` and its file from the arguments, and returns the file's name, empty if there is none."""
    for at, argument in enumerate(arguments):
        if argument.startswith("--config="):
            return _named(arguments.pop(at).partition("=")[2], source)
        if argument == "--config" and at + 1 < len(arguments):
            arguments.pop(at)
            return _named(arguments.pop(at), source)
    return ""


def _named(file: str, source: str) -> str:
    """The file's name, which must not contain shell variables."""
    if has_shell(file):
        env = " ".join(f"--env {name}=VALUE" for name in shell_names(file)) or "the file's name"
        raise recipe_error(source, f"--config: found {cut(file)}, a shell variable that is not set. Write {env}")
    return file


SYSTEM = System(
    name="trl",
    title="TRL",
    detect=detect,
    read=read,
    near_miss=near_miss,
    render=later("planner.recipes.trl.render:render"),
    render_command=later("planner.recipes.trl.render:to_trl"),
    rules=RULES,
    versions="TRL 0.19 to 1.16, transformers 4.53 to 5.23, the alignment-handbook to v0.3",
    listed="TRL",
    marks=("per_device_train_batch_size",),
    programs=("sft.py", "trl dpo"),
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
    takes_repeats=True,
)
