"""The DPO repository and HALOs as systems: the configuration that Hydra would put together, and its recipe."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes import dpo, halos, hydra
from planner.recipes.accelerate import read_launch
from planner.recipes.drafting import Options
from planner.recipes.entries import COMMAND_LINE, Keys
from planner.recipes.halos_runs import Meaning
from planner.recipes.hydra_detect import GROUPS, chosen, detect, near_miss, resolved, without_choices
from planner.recipes.launcher import launch_of
from planner.recipes.recipe import Recipe
from planner.recipes.render_hydra import render_dpo, render_halos, to_dpo, to_halos
from planner.recipes.source import RecipeSource
from planner.recipes.system import System
from planner.recipes.texts import text_of


def read(found: RecipeSource, options: Options, *, is_halos: bool) -> Recipe:
    """The recipe, of one resolved file or of a configuration that Hydra would put together."""
    if found.kind == "keys":
        return _of_file(found, options, is_halos=is_halos)
    if found.command and found.command.script == "train.py":
        options = _with_devices(options, found.command.launcher)
    missing, words = without_choices(found)
    base = {}
    if found.folder is None:
        base = (halos if is_halos else dpo).base(chosen(hydra.parse_overrides(words)[0]))
    made = hydra.compose(base, found.folder, words, source=found.source, groups=GROUPS, env=options.env)
    keys = Keys(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    for key, value in missing.items():
        keys.unresolved(key, value, COMMAND_LINE)
    recipe = _of_keys(keys, made.choices, found, options, is_halos=is_halos)
    for word in made.words:
        if word in found.asked:
            keys.wrong(f"{cut(word)}: no option of planner, nor key=value; take it out")
        elif word.startswith("-"):
            recipe.draft.drop(cut(word), "an option of Hydra's; config.yaml is read as it is, once")
        else:
            recipe.draft.drop(cut(word), "a word that is no override and cannot be resolved here")
    keys.raise_mistakes()
    return replace(recipe, words=found.words) if found.command else recipe


def _of_file(found: RecipeSource, options: Options, *, is_halos: bool) -> Recipe:
    """One file with all keys, as the DPO repository leaves it in a run's folder."""
    entries = resolved(found)
    made = hydra.compose(entries, None, found.words, source=found.source, groups=(), env=options.env)
    keys = Keys(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    keys.mistakes += [f"{cut(word)}: no option of planner, nor key=value; take it out" for word in made.words]
    recipe = _of_keys(keys, {}, found, options, is_halos=is_halos)
    keys.raise_mistakes()
    return recipe


def _with_devices(options: Options, launcher: Mapping[str, str]) -> Options:
    """The script trains on every GPU that it is shown."""
    shown = launcher.get("CUDA_VISIBLE_DEVICES")
    return replace(options, gpus=len(shown.split(","))) if shown and not options.gpus else options


def _of_keys(keys: Keys, choices: dict[str, str], found: RecipeSource, options: Options, *, is_halos: bool) -> Recipe:
    top, below = keys.has("batch_size"), keys.has("model.batch_size")
    if top and below:
        keys.wrong(
            "batch_size and model.batch_size: the DPO repository reads the first and HALOs the second; take one out"
        )
        keys.raise_mistakes()
    if not is_halos:
        return dpo.read(keys, choices, options)
    launch = launch_of(found.command, options, keys, found.source) if found.command else None
    if options.accelerate and launch is None:
        launch = read_launch(options.accelerate)
    if launch and options.gpus and launch.num_processes not in {None, options.gpus}:
        keys.wrong(
            f"--gpus {options.gpus}: {launch.source} says num_processes {launch.num_processes}; leave one of them out"
        )
    group = found.command.group_size if found.command else None
    return halos.read(keys, choices, options, told=_told(found), launch=launch, group=group)


def _told(found: RecipeSource) -> Meaning | None:
    """What a comment in HALOs' files says that batch_size counts."""
    if found.folder is not None:
        file = found.folder / "model" / "base_model.yaml"
        return halos.told_meaning(text_of(file)) if is_file(file) else None
    return halos.told_meaning(found.text) if found.kind == "keys" else None


DPO = System(
    name="dpo",
    title="DPO repository",
    detect=partial(detect, is_halos=False),
    read=partial(read, is_halos=False),
    near_miss=near_miss,  # it speaks for both
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
