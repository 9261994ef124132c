"""Reads recipes of the DPO repository and of HALOs: the configuration that Hydra would compose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from planner.files.messages import cut
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader
from planner.recipes.hydra.compose import Composed, compose, parse_overrides
from planner.recipes.hydra.options import HydraOptions
from planner.recipes.hydra.options import read as read_options
from planner.recipes.hydra_recipes.detect import GROUPS, chosen, composed, resolved, without_choices
from planner.recipes.hydra_recipes.forks import new_keys
from planner.recipes.recipe import Recipe
from planner.recipes.rule import Rules
from planner.recipes.scalars import has_shell
from planner.recipes.source import RecipeSource
from planner.recipes.trackers import variables_of


@dataclass(frozen=True)
class HydraSystem:
    """In what the two systems differ for the reader of Hydra's configuration."""

    title: str
    """the system's name in messages"""
    config: Rules
    """rows of the keys in its configuration"""
    base: Callable[[Mapping[str, str]], dict[str, Entry]]
    """its default configuration for the choices of Hydra's groups, for a command without its folder"""
    read: Callable[[KeyReader, Composed, RecipeSource, RecipeOptions], Recipe]
    """the recipe of a composed configuration"""
    losses: tuple[str, ...] = ()
    """its choices of `loss`. Any other one is a fork's. Empty if others may be of another version"""


def read(found: RecipeSource, options: RecipeOptions, its: HydraSystem) -> Recipe:
    """The recipe in a resolved file, or in the configuration that Hydra would compose.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    if found.kind == "keys":
        return _of_file(found, options, its)
    if found.command and found.command.script == "train.py":
        options = _with_devices(options, found.command.launcher)
    missing, arguments = without_choices(found)
    hydras = read_options(found.arguments)
    base, new = {}, []
    if found.folder is None:
        overrides = parse_overrides(arguments)[0]
        choices = chosen(overrides)
        base = its.base(choices)
        is_fork = bool(its.losses) and choices.get("loss", its.losses[0]) not in its.losses
        new = [key for key in new_keys(overrides, base, is_fork=is_fork) if key not in GROUPS]
    made = composed(found, base, arguments, options.env, new)
    keys = KeyReader(source=found.source, entries=made.entries, is_for_job=options.is_for_job, rules=its.config)
    if found.command:
        options = replace(options, env={**found.command.environment, **options.env})
    for key, value in missing.items():
        keys.unresolved(key, value, COMMAND_LINE)
    _refuse_no_training(keys, made, hydras, its)
    recipe = _of_keys(keys, made, found, options, its)
    _note_arguments(recipe, keys, made, hydras, found)
    keys.raise_mistakes()
    theirs = found.arguments if found.command else ()
    open_ones = tuple(argument for argument in made.arguments if argument not in found.user_arguments)
    return replace(recipe, arguments=theirs, open_arguments=open_ones, environment=variables_of(options.env))


def _refuse_no_training(keys: KeyReader, made: Composed, hydras: HydraOptions, its: HydraSystem) -> None:
    """Refuses options with which Hydra trains nothing, and the removal of keys that the system reads."""
    if hydras.no_training:
        keys.wrong(f"{hydras.no_training}: with it Hydra does not train this configuration. Remove it")
    if hydras.is_multirun and (params := [text for text in made.hydras if "hydra.sweeper" in text]):
        keys.wrong(f"--multirun: {cut(params[0])} makes several runs. Remove --multirun, and write one run's values")
    known = its.config.names
    for key in made.deleted:
        if key in known or any(name.startswith(f"{key}.") for name in known):
            keys.wrong(f"~{cut(key)}: {its.title} reads this key, so it would not start. Remove the override")


def _note_arguments(recipe: Recipe, keys: KeyReader, made: Composed, hydras: HydraOptions, found: RecipeSource) -> None:
    """Notes Hydra's own settings, and arguments that are no overrides. Hydra refuses those without a variable."""
    for argument in made.hydras:
        recipe.draft.drop(cut(argument), "a setting of Hydra's own, which concerns no key of the recipe")
    for argument in hydras.taken:
        why = "one run, because no override has several values" if argument in {"-m", "--multirun"} else "read"
        recipe.draft.drop(cut(argument), f"an option of Hydra's own: {why}")
    for argument in made.arguments:
        if argument in found.user_arguments:
            keys.wrong(f"{cut(argument)}: neither an option of planner nor key=value. Remove it")
        elif "$" in argument or "`" in argument:
            recipe.draft.drop(cut(argument), "arguments in a variable that is not set. --env NAME=VALUE sets it")
        else:
            keys.wrong(f"{cut(argument)}: not KEY=VALUE as Hydra reads it, so the script would not start. Correct it")


def _of_file(found: RecipeSource, options: RecipeOptions, its: HydraSystem) -> Recipe:
    """The recipe in a resolved configuration file, such as the DPO repository writes into a run's folder."""
    entries = resolved(found)
    made = compose(entries, None, found.arguments, source=found.source, groups=(), env=options.env)
    keys = KeyReader(source=found.source, entries=made.entries, is_for_job=options.is_for_job, rules=its.config)
    keys.mistakes += [
        f"{cut(argument)}: neither an option of planner nor key=value. Remove it" for argument in made.arguments
    ]
    recipe = _of_keys(keys, made, found, options, its)
    keys.raise_mistakes()
    return recipe


def _with_devices(options: RecipeOptions, launcher: Mapping[str, str]) -> RecipeOptions:
    """The options with the GPU count of CUDA_VISIBLE_DEVICES: the DPO repository trains on every visible GPU."""
    shown = launcher.get("CUDA_VISIBLE_DEVICES")
    is_known = bool(shown) and not has_shell(shown or "")
    return replace(options, gpus=len(str(shown).split(","))) if is_known and not options.gpus else options


def _of_keys(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions, its: HydraSystem) -> Recipe:
    if keys.has("batch_size") and keys.has("model.batch_size"):
        keys.wrong(
            "batch_size and model.batch_size: the DPO repository reads the first and HALOs the second. Remove one"
        )
        keys.raise_mistakes()
    return its.read(keys, made, found, options)
