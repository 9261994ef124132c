"""TRL and the alignment-handbook as a system: their flat YAML, and the commands that start TRL's scripts."""

from dataclasses import replace

from planner.files.messages import cut
from planner.recipes import trl
from planner.recipes.accelerate import read_launch
from planner.recipes.command import HYDRA_SCRIPTS, Command, other_of_trl
from planner.recipes.drafting import Options
from planner.recipes.entries import Entry, Keys, flat
from planner.recipes.launcher import launch_of
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.render_trl import render, to_trl
from planner.recipes.scalars import shell_names
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.system import System
from planner.recipes.texts import beside, mapping_of, recipe_error, text_of

# With `model_name_or_path`, the keys of a TRL recipe that leaves the batch to its defaults.
_BESIDE_A_MODEL = ("gradient_accumulation_steps", "dataset_name", "dataset_mixture", "dataset_mixer")


def detect(found: RecipeSource) -> bool:
    """By the keys of one file, or by the script that a command starts."""
    if found.command:
        return found.command.script not in HYDRA_SCRIPTS
    tree = found.tree
    has_model = "model_name_or_path" in tree and not tree.keys().isdisjoint(_BESIDE_A_MODEL)
    return "per_device_train_batch_size" in tree or has_model


def near_miss(found: RecipeSource) -> str:
    """That a command of TRL's is none of those that planner reads."""
    other = other_of_trl(found.text) if found.kind == "text" else ""
    return f"found trl {cut(other)}; planner reads trl sft, dpo, orpo, kto and grpo" if other else ""


def read(found: RecipeSource, options: Options) -> Recipe:
    """The recipe, of a file or of a command."""
    return _of_command(found, found.command, options) if found.command else _of_file(found, options)


def _of_file(found: RecipeSource, options: Options) -> Recipe:
    entries = flat(found.tree, found.source)
    others = overrides(found.words, entries)
    keys = Keys(source=found.source, entries=entries, is_for_job=options.is_for_job)
    keys.mistakes += [_no_override(word) for word in others]
    launch = read_launch(options.accelerate) if options.accelerate else None
    recipe = trl.read(keys, options, script="", launch=launch)
    keys.raise_mistakes()
    # As options of the recipe's own command, which beat its file.
    return replace(recipe, words=tuple(_as_option(word) for word in found.words), config=found.source)


def _as_option(word: str) -> str:
    return f"--{word.lstrip('+')}" if "=" in word and not word.startswith("-") else word


def _no_override(word: str) -> str:
    return f"{cut(word)}: neither --key value nor key=value; take it out"


def _of_command(found: RecipeSource, command: Command, options: Options) -> Recipe:
    entries: dict[str, Entry] = {}
    words = list(found.words)
    config = _config_of(words, found.source)
    config_first = not config and bool(words) and _is_file_name(words[0])
    if config_first:
        config = _first_of(words, command.script, found.source)
    written = tuple(words)
    if config:
        tree = mapping_of(text_of(beside(found.source, config)), config)
        entries |= flat(tree, config)
    others = overrides(words, entries)
    keys = Keys(source=config or found.source, entries=entries, fix="--KEY VALUE", is_for_job=options.is_for_job)
    keys.mistakes += [_no_override(word) for word in others if "$" not in word]
    trl.leave_unresolved(keys)
    recipe = trl.read(keys, options, script=command.script, launch=launch_of(command, options, keys, found.source))
    for word in others:
        recipe.draft.drop(cut(word), "words that the script takes from a variable; give them by --env NAME=VALUE")
    keys.raise_mistakes()
    return replace(recipe, words=written, config=config, config_first=config_first)


def _is_file_name(word: str) -> bool:
    return word.endswith(YAML) and not word.startswith("-")


def _first_of(words: list[str], script: str, source: str) -> str:
    """The file that the older handbook's scripts take as their first word; it is taken out of the words.

    Raises:
        RecipeError: TRL's scripts want `--config` before it.
    """
    if script.startswith("run_"):
        return _named(words.pop(0), source)
    text = f"found {cut(words[0])} without --config, which TRL wants before its file; write --config {cut(words[0])}"
    raise recipe_error(source, text)


def _config_of(words: list[str], source: str) -> str:
    """The file that `--config` names; it is taken out of the words."""
    for at, word in enumerate(words):
        if word.startswith("--config="):
            return _named(words.pop(at).partition("=")[2], source)
        if word == "--config" and at + 1 < len(words):
            words.pop(at)
            return _named(words.pop(at), source)
    return ""


def _named(file: str, source: str) -> str:
    """The file's name. It must not contain shell variables."""
    if names := shell_names(file):
        env = " ".join(f"--env {name}=VALUE" for name in names)
        raise recipe_error(source, f"--config: found {cut(file)}, a shell variable that is not set; write {env}")
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
