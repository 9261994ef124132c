"""The DPO repository and HALOs as a `System` each. Both read the configuration that Hydra would compose."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes import dpo, forks, halos
from planner.recipes.config_reader import text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.halos_batching import Meaning
from planner.recipes.hydra.compose import Composed, compose, parse_overrides
from planner.recipes.hydra.options import HydraOptions
from planner.recipes.hydra.options import read as read_options
from planner.recipes.hydra_detect import GROUPS, chosen, composed, detect, near_miss, resolved, without_choices
from planner.recipes.recipe import Recipe
from planner.recipes.render_hydra import render_dpo, render_halos, to_dpo, to_halos
from planner.recipes.scalars import has_shell
from planner.recipes.source import RecipeSource
from planner.recipes.system import System
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.accelerate import read_launch
from planner.recipes.trainer.launcher import launch_of
from planner.recipes.upstream_defaults import DPO_DEFAULTS, HALOS_DEFAULTS


def read(found: RecipeSource, options: RecipeOptions, *, is_halos: bool) -> Recipe:
    """The recipe in a resolved file, or in the configuration that Hydra would compose.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    if found.kind == "keys":
        return _of_file(found, options, is_halos=is_halos)
    if found.command and found.command.script == "train.py":
        options = _with_devices(options, found.command.launcher)
    missing, arguments = without_choices(found)
    hydras = read_options(found.arguments)
    base, new = {}, []
    if found.folder is None:
        overrides = parse_overrides(arguments)[0]
        base = (halos if is_halos else dpo).base(chosen(overrides))
        is_fork = not is_halos and chosen(overrides).get("loss", "dpo") not in dpo.LOSSES
        new = [key for key in forks.new_keys(overrides, base, is_fork=is_fork) if key not in GROUPS]
    made = composed(found, base, arguments, options.env, new)
    keys = KeyReader(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    if found.command:
        options = replace(options, env={**found.command.environment, **options.env})
    for key, value in missing.items():
        keys.unresolved(key, value, COMMAND_LINE)
    _refuse_no_training(keys, made, hydras, is_halos=is_halos)
    recipe = _of_keys(keys, made, found, options, is_halos=is_halos)
    _note_arguments(recipe, keys, made, hydras, found)
    keys.raise_mistakes()
    theirs = found.arguments if found.command else ()
    open_ones = tuple(argument for argument in made.arguments if argument not in found.user_arguments)
    return replace(recipe, arguments=theirs, open_arguments=open_ones, environment=variables_of(options.env))


def _refuse_no_training(keys: KeyReader, made: Composed, hydras: HydraOptions, *, is_halos: bool) -> None:
    """Refuses options with which Hydra trains nothing, and the removal of keys that the system reads."""
    if hydras.no_training:
        keys.wrong(f"{hydras.no_training}: with it Hydra does not train this configuration. Remove it")
    if hydras.is_multirun and (params := [text for text in made.hydras if "hydra.sweeper" in text]):
        keys.wrong(f"--multirun: {cut(params[0])} makes several runs. Remove --multirun, and write one run's values")
    system, known = ("HALOs", HALOS_DEFAULTS) if is_halos else ("the DPO repository", DPO_DEFAULTS)
    for key in made.deleted:
        if key in known or any(name.startswith(f"{key}.") for name in known):
            keys.wrong(f"~{cut(key)}: {system} reads this key, so it would not start. Remove the override")


def _note_arguments(
    recipe: Recipe,
    keys: KeyReader,
    made: Composed,
    hydras: HydraOptions,
    found: RecipeSource,
) -> None:
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


def _of_file(found: RecipeSource, options: RecipeOptions, *, is_halos: bool) -> Recipe:
    """The recipe in a resolved configuration file, such as the DPO repository writes into a run's folder."""
    entries = resolved(found)
    made = compose(entries, None, found.arguments, source=found.source, groups=(), env=options.env)
    keys = KeyReader(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    keys.mistakes += [
        f"{cut(argument)}: neither an option of planner nor key=value. Remove it" for argument in made.arguments
    ]
    recipe = _of_keys(keys, made, found, options, is_halos=is_halos)
    keys.raise_mistakes()
    return recipe


def _with_devices(options: RecipeOptions, launcher: Mapping[str, str]) -> RecipeOptions:
    """The options with the GPU count of CUDA_VISIBLE_DEVICES: the DPO repository trains on every visible GPU."""
    shown = launcher.get("CUDA_VISIBLE_DEVICES")
    is_known = bool(shown) and not has_shell(shown or "")
    return replace(options, gpus=len(str(shown).split(","))) if is_known and not options.gpus else options


def _of_keys(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions, *, is_halos: bool) -> Recipe:
    top, below = keys.has("batch_size"), keys.has("model.batch_size")
    if top and below:
        keys.wrong(
            "batch_size and model.batch_size: the DPO repository reads the first and HALOs the second. Remove one"
        )
        keys.raise_mistakes()
    if not is_halos:
        return dpo.read(keys, made.choices, options, used=frozenset(made.used))
    launch = launch_of(found.command, options, keys, found.source) if found.command else None
    if options.accelerate and launch is None:
        launch = read_launch(options.accelerate)
    if launch and options.gpus and launch.num_processes not in {None, options.gpus}:
        keys.wrong(
            f"{options.gpus_option} {options.gpus}: {launch.source} says num_processes {launch.num_processes}. "
            "Leave one of them out"
        )
    group = found.command.group_size if found.command else None
    commented, used = _meaning_in_files(found), frozenset(made.used)
    return halos.read(keys, made.choices, options, commented=commented, launch=launch, group=group, used=used)


def _meaning_in_files(found: RecipeSource) -> Meaning | None:
    """What a comment in HALOs' files says that batch_size counts, None if there is none."""
    if found.folder is not None:
        file = found.folder / "model" / "base_model.yaml"
        return halos.meaning_in_comment(text_of(file)) if is_file(file) else None
    return halos.meaning_in_comment(found.text) if found.kind == "keys" else None


DPO = System(
    name="dpo",
    title="DPO repository",
    detect=partial(detect, is_halos=False),
    read=partial(read, is_halos=False),
    near_miss=near_miss,  # for both systems
    render=render_dpo,
    render_command=to_dpo,
    methods=("sft", "dpo", "ipo"),
)
HALOS = System(
    name="halos",
    title="HALOs",
    detect=partial(detect, is_halos=True),
    read=partial(read, is_halos=True),
    render=render_halos,
    render_command=to_halos,
    methods=("sft", "dpo", "ipo", "simpo", "kto"),
)
