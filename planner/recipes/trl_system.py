"""TRL and the alignment-handbook as a `System`: their flat YAML, and commands that start TRL's scripts."""

from dataclasses import replace

from planner.files.messages import cut
from planner.recipes import trl
from planner.recipes.accelerate import read_launch
from planner.recipes.command import HYDRA_SCRIPTS, Command, other_of_trl
from planner.recipes.config_reader import beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.launcher import is_alone, launch_of
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.render_trl import render, to_trl
from planner.recipes.scalars import shell_names
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.system import System
from planner.recipes.trackers import variables_of
from planner.recipes.trl_batching import TrlFacts
from planner.recipes.trl_sizes import SPLITS

# Together with `model_name_or_path`, one of these marks a TRL recipe that leaves the batch to TRL's defaults.
_BESIDE_A_MODEL = ("gradient_accumulation_steps", "dataset_name", "dataset_mixture", "dataset_mixer")


def detect(found: RecipeSource) -> bool:
    """Whether a file has the keys of a TRL recipe, or a command starts a script of TRL."""
    if found.command:
        return found.command.script not in HYDRA_SCRIPTS
    tree = found.tree
    has_model = "model_name_or_path" in tree and not tree.keys().isdisjoint(_BESIDE_A_MODEL)
    return "per_device_train_batch_size" in tree or has_model


def near_miss(found: RecipeSource) -> str:
    """The reason if the recipe is a `trl` command that planner does not read, else an empty text."""
    other = other_of_trl(found.text) if found.kind == "text" else ""
    return f"found trl {cut(other)}. planner reads trl sft, dpo, orpo, kto and grpo" if other else ""


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    return _of_command(found, found.command, options) if found.command else _of_file(found, options)


def _of_file(found: RecipeSource, options: RecipeOptions) -> Recipe:
    entries = flat(found.tree, found.source)
    others = overrides(found.arguments, entries)
    keys = KeyReader(source=found.source, entries=entries, is_for_job=options.is_for_job)
    keys.mistakes += [_no_override(argument) for argument in others]
    launch = read_launch(options.accelerate) if options.accelerate else None
    recipe = trl.read(keys, options, script="", launch=launch)
    keys.raise_mistakes()
    # As options of the recipe's own command, they win over its file.
    arguments = tuple(_as_option(argument) for argument in found.arguments)
    return replace(recipe, arguments=arguments, config=found.source, environment=variables_of(options.env))


def _as_option(argument: str) -> str:
    return f"--{argument.lstrip('+')}" if "=" in argument and not argument.startswith("-") else argument


def _no_override(argument: str) -> str:
    return f"{cut(argument)}: neither --key value nor key=value. Remove it"


def _of_command(found: RecipeSource, command: Command, options: RecipeOptions) -> Recipe:
    entries: dict[str, Entry] = {}
    arguments = list(found.arguments)
    config = _config_of(arguments, found.source)
    config_first = not config and bool(arguments) and _is_file_name(arguments[0])
    if config_first:
        config = _first_of(arguments, command.script, found.source)
    written = tuple(arguments)
    options = replace(options, env={**command.environment, **options.env})
    if config:
        tree = mapping_of(text_of(beside(found.source, config)), config)
        entries |= flat(tree, config)
    others = overrides(arguments, entries)
    keys = KeyReader(source=config or found.source, entries=entries, fix="--KEY VALUE", is_for_job=options.is_for_job)
    keys.mistakes += [_no_override(argument) for argument in others if "$" not in argument]
    trl.leave_unresolved(keys)
    launch = launch_of(command, options, keys, found.source)
    recipe = trl.read(keys, options, script=command.script, launch=launch)
    if is_alone(command) and isinstance(facts := recipe.foreign, TrlFacts):
        recipe = replace(recipe, foreign=replace(facts, is_alone=True))
        if facts.splits_batches:
            keys.refuse(SPLITS, "Python alone starts one process for all GPUs: start the script by accelerate launch")
    for argument in others:
        recipe.draft.drop(cut(argument), "a variable that may hold any arguments: give its value by --env NAME=VALUE")
    keys.raise_mistakes()
    return replace(
        recipe, arguments=written, config=config, config_first=config_first, environment=variables_of(options.env)
    )


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
    if names := shell_names(file):
        env = " ".join(f"--env {name}=VALUE" for name in names)
        raise recipe_error(source, f"--config: found {cut(file)}, a shell variable that is not set. Write {env}")
    return file


SYSTEM = System(
    name="trl",
    title="TRL",
    detect=detect,
    read=read,
    near_miss=near_miss,
    render=render,
    render_command=to_trl,
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
)
