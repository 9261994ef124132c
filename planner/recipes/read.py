"""A recipe on disk or on a command line -> a `Recipe`: which system's it is goes by its keys."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner.base.disk import is_file
from planner.files import read_job
from planner.files.words import cut
from planner.recipes import accelerate, deepspeed, dpo, halos, hydra, known, strangers, trl
from planner.recipes.command import Command, command_of, is_command, refuse_other, starts_program
from planner.recipes.drafting import Options
from planner.recipes.entries import COMMAND_LINE, Entry, Keys, flat
from planner.recipes.halos_runs import Meaning
from planner.recipes.launcher import beside, launch_of
from planner.recipes.recipe import Draft, Recipe
from planner.recipes.refusals import refuse_command, refuse_script, refuse_toml, require_own
from planner.recipes.scalars import Unresolved, shell_names
from planner.recipes.texts import mapping_of, recipe_error, text_of

_SYSTEMS = (
    "the DPO repository (batch_size, trainer, loss.name), HALOs (model.batch_size, loss.trainer), TRL "
    "(per_device_train_batch_size), "
    "DeepSpeed (train_batch_size) or a job of ours (batch.global)"
)
_GROUPS = ("model", "loss")
_YAML = (".yaml", ".yml", ".json")
# With `model_name_or_path`, the keys of a TRL recipe that leaves the batch to its defaults.
_BESIDE_A_MODEL = ("gradient_accumulation_steps", "dataset_name", "dataset_mixture", "dataset_mixer")


@dataclass(kw_only=True)
class _Found:
    """What lies at the path that a user named, before it is known whose it is."""

    source: str
    tree: dict[str, Any] = field(default_factory=dict)
    """of a file with keys and values"""
    folder: Path | None = None
    """of Hydra's files"""
    command: Command | None = None
    words: list[str] = field(default_factory=list)
    """overrides, those of the recipe's own command first"""
    asked: list[str] = field(default_factory=list)
    """those among them that stand behind the recipe"""
    text: str = ""


def read_recipe(path: str, words: Sequence[str] = (), options: Options | None = None) -> Recipe:
    """The recipe at a path: a file, a folder of Hydra's, or the text of a command; `words` are overrides.

    Raises:
        RecipeError: it cannot be read, contradicts itself, or does not say enough; the message has a line per mistake.
        JobError: it is a job of ours, and wrong.
    """
    options = options or Options()
    found = _find(path, list(words), options.env)
    found.asked = list(words)
    if found.command is not None:
        recipe = _of_command(found, options)
    elif found.folder is not None:
        recipe = _of_hydra(found, options)
    else:
        recipe = _of_tree(path, found, options)
    named = found.command.launcher.get("--config_file", "") if found.command else ""
    return replace(recipe, launch_file=options.accelerate or named)


def _find(path: str, words: list[str], env: Mapping[str, str]) -> _Found:
    if not path:
        raise recipe_error("RECIPE", "found nothing; write the path of a recipe")
    if not _is_there(path) and is_command(path):
        return _of_text(path, "the command", None, words, env)
    if not _is_there(path) and (starts_program(path) or strangers.by_program(path)):
        refuse_other(path, "the command")
    place = Path(path)
    if _is_there(path) and place.is_dir():
        return _of_folder(place, words)
    text = text_of(path)
    if place.suffix == ".toml":
        refuse_toml(text, path)
    if place.suffix not in _YAML:
        if is_command(text):
            return _of_text(text, path, place.parent, words, env)
        refuse_script(text, path, place.suffix)
    tree = mapping_of(text, path)
    if isinstance(tree.get("defaults"), list) and place.name == "config.yaml":
        return _Found(source=path, folder=place.parent, words=words)
    return _Found(source=path, tree=tree, words=words, text=text)


def _of_folder(place: Path, words: list[str]) -> _Found:
    """A Hydra configuration: the folder itself, or `config/` in the folder of a checkout."""
    for folder in (place, place / "config"):
        if is_file(folder / "config.yaml"):
            return _Found(source=str(folder), folder=folder, words=words)
    near = cut(", ".join(sorted(file.name for file in place.glob("*.y*ml"))), 200)
    hint = f"; the files there are {near}, write the path of one" if near else ""
    raise recipe_error(
        str(place), f"found a folder without config.yaml{hint}, or write the folder of a Hydra configuration"
    )


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _of_text(text: str, source: str, beside: Path | None, words: list[str], env: Mapping[str, str]) -> _Found:
    """A command, with the Hydra folder of the checkout that its script lies in, if it does."""
    command = command_of(text, source, env)
    folders = [] if beside is None else [beside / "config", beside.parent / "config", beside]
    folder = next((each for each in folders if is_file(each / "config.yaml") and (each / "model").is_dir()), None)
    return _Found(source=source, folder=folder, command=command, words=[*command.words, *words])


def _of_command(found: _Found, options: Options) -> Recipe:
    command = found.command
    assert command is not None
    refuse_command(command, found.words, found.source)
    if command.script in {"train.py", "launch.py"}:
        if command.script == "train.py" and command.launcher.get("CUDA_VISIBLE_DEVICES") and not options.gpus:
            options = replace(options, gpus=len(command.launcher["CUDA_VISIBLE_DEVICES"].split(",")))
        return _of_hydra(found, options)
    entries: dict[str, Entry] = {}
    words = list(found.words)
    config = _config_of(words, found.source)
    config_first = not config and bool(words) and _is_file(words[0])
    if config_first:
        config = _first_of(words, command.script, found.source)
    written = tuple(words)
    if config:
        tree = mapping_of(text_of(beside(found.source, config)), config)
        entries |= flat(tree, config)
    others = trl.overrides(words, entries)
    keys = Keys(source=config or found.source, entries=entries, fix="--KEY VALUE", is_for_job=options.is_for_job)
    keys.mistakes += [
        f"{cut(word)}: neither --key value nor key=value; take it out" for word in others if "$" not in word
    ]
    trl.leave_unresolved(keys)
    recipe = trl.read(keys, options, script=command.script, launch=launch_of(command, options, keys, found.source))
    for word in others:
        recipe.draft.drop(cut(word), "words that the script takes from a variable; give them by --env NAME=VALUE")
    keys.raise_mistakes()
    return replace(recipe, words=written, config=config, config_first=config_first)


def _is_file(word: str) -> bool:
    return word.endswith(_YAML) and not word.startswith("-")


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


def _of_hydra(found: _Found, options: Options) -> Recipe:
    """The DPO repository's or HALOs', by the keys of the folder, or by the script that the command starts."""
    script = found.command.script if found.command else ""
    is_halos = script == "launch.py"
    missing, words = _without_choices(found)
    overrides = hydra.parse_overrides(words)[0]
    chosen = {its.key: str(its.value) for its in overrides if its.key in _GROUPS}
    if found.folder is None:
        said = {its.key: Entry(value=its.value, where=found.source) for its in overrides if its.key not in _GROUPS}
        require_own(said, chosen, found.source, script, is_halos=is_halos)
        base = (halos if is_halos else dpo).base(chosen)
    else:
        file = found.folder / "config.yaml"
        is_halos, base = "batch_size" not in mapping_of(text_of(file), str(file)), {}
    made = hydra.compose(base, found.folder, words, source=found.source, groups=_GROUPS, env=options.env)
    if found.folder is not None:
        require_own(made.entries, made.choices, found.source, script, is_halos=is_halos)
    keys_found = Keys(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    for key, value in missing.items():
        keys_found.unresolved(key, value, COMMAND_LINE)
    recipe = _hydra_recipe(keys_found, made.choices, found, options, is_halos=is_halos)
    for word in made.words:
        if word in found.asked:
            keys_found.wrong(f"{cut(word)}: no option of planner, nor key=value; take it out")
        elif word.startswith("-"):
            recipe.draft.drop(cut(word), "an option of Hydra's; config.yaml is read as it is, once")
        else:
            recipe.draft.drop(cut(word), "a word that is no override and cannot be resolved here")
    keys_found.raise_mistakes()
    return replace(recipe, words=tuple(found.words)) if found.command else recipe


def _without_choices(found: _Found) -> tuple[dict[str, Unresolved], list[str]]:
    """The groups whose choice is a variable that is not set, and the words without them.

    The rest is read all the same, so that one refusal names all that is missing; a folder has no file for a stand-in.

    Raises:
        RecipeError: there is a folder.
    """
    overrides = hydra.parse_overrides(found.words)[0]
    missing = {its.key: its.value for its in overrides if its.key in _GROUPS and isinstance(its.value, Unresolved)}
    if missing and found.folder is not None:
        keys = Keys(source=found.source, entries={})
        for key, value in missing.items():
            keys.unresolved(key, value, COMMAND_LINE)
        keys.raise_mistakes()
    words = [word for word in found.words if word.partition("=")[0].lstrip("+") not in missing]
    return missing, [*words, *(["loss=sft"] if "loss" in missing else [])]


def _hydra_recipe(keys: Keys, choices: dict[str, str], found: _Found, options: Options, *, is_halos: bool) -> Recipe:
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
        launch = accelerate.read_launch(options.accelerate)
    if launch and options.gpus and launch.num_processes not in {None, options.gpus}:
        keys.wrong(
            f"--gpus {options.gpus}: {launch.source} says num_processes {launch.num_processes}; leave one of them out"
        )
    group = found.command.group_size if found.command else None
    return halos.read(keys, choices, options, told=_told(found), launch=launch, group=group)


def _told(found: _Found) -> Meaning | None:
    """What a comment in HALOs' files says that batch_size counts."""
    if found.folder is None:
        return halos.told_meaning(found.text)
    file = found.folder / "model" / "base_model.yaml"
    return halos.told_meaning(text_of(file)) if is_file(file) else None


def _of_tree(path: str, found: _Found, options: Options) -> Recipe:
    """By the keys of one file."""
    tree, source = found.tree, found.source
    batch, model = tree.get("batch"), tree.get("model")
    if isinstance(batch, dict) and "global" in batch:
        return _of_job(path, found.words)
    strangers.refuse_keys(flat(tree, source), source)
    if "per_device_train_batch_size" in tree or (
        "model_name_or_path" in tree and not tree.keys().isdisjoint(_BESIDE_A_MODEL)
    ):
        return _of_trl(found, options)
    if deepspeed.is_deepspeed(tree):
        entries = flat(tree, source)
        trl.overrides(found.words, entries)
        keys = Keys(source=source, entries=entries, fix="KEY=VALUE", is_for_job=options.is_for_job)
        recipe = deepspeed.read(keys, options)
        keys.raise_mistakes()
        return recipe
    if accelerate.is_accelerate(tree):
        text = (
            "found an accelerate file, which says how many processes there are and not what is trained; write "
            "the recipe"
        )
        raise recipe_error(source, f"{text}, and this file behind --accelerate")
    is_dpo = "batch_size" in tree and ("trainer" in tree or not isinstance(model, dict) or "batch_size" not in model)
    if is_dpo or (isinstance(model, dict) and "batch_size" in model):
        return _of_resolved(found, options, is_halos=not is_dpo)
    raise recipe_error(source, f"found no recipe that planner knows: {_nearest(tree)}")


def _nearest(tree: dict[str, Any]) -> str:
    fingerprints = ("batch_size", "per_device_train_batch_size", "train_batch_size", "gradient_accumulation_steps")
    for key in tree:
        near = get_close_matches(key, fingerprints, n=1, cutoff=0.8)
        if near and key not in fingerprints:
            return f"{cut(key)} is near {near[0]}; write it so if it is meant"
    return f"its keys are {cut(', '.join(tree), 100)}; write one of {_SYSTEMS}"


def _of_resolved(found: _Found, options: Options, *, is_halos: bool) -> Recipe:
    """One file with all keys, as the DPO repository leaves it in a run's folder."""
    entries = flat({key: value for key, value in found.tree.items() if key != "defaults"}, found.source)
    both = "batch_size" in entries and "model.batch_size" in entries
    if not both and not (known.is_halos if is_halos else known.is_dpo)(entries, {}):
        raise recipe_error(found.source, f"found no recipe that planner knows: {_nearest(found.tree)}")
    made = hydra.compose(entries, None, found.words, source=found.source, groups=(), env=options.env)
    keys = Keys(source=found.source, entries=made.entries, is_for_job=options.is_for_job)
    keys.mistakes += [f"{cut(word)}: no option of planner, nor key=value; take it out" for word in made.words]
    recipe = _hydra_recipe(keys, {}, found, options, is_halos=is_halos)
    keys.raise_mistakes()
    return recipe


def _of_trl(found: _Found, options: Options) -> Recipe:
    entries = flat(found.tree, found.source)
    others = trl.overrides(found.words, entries)
    keys = Keys(source=found.source, entries=entries, is_for_job=options.is_for_job)
    keys.mistakes += [f"{cut(word)}: neither --key value nor key=value; take it out" for word in others]
    launch = accelerate.read_launch(options.accelerate) if options.accelerate else None
    recipe = trl.read(keys, options, script="", launch=launch)
    keys.raise_mistakes()
    # As options of the recipe's own command, which beat its file.
    return replace(recipe, words=tuple(_as_option(word) for word in found.words), config=found.source)


def _as_option(word: str) -> str:
    return f"--{word.lstrip('+')}" if "=" in word and not word.startswith("-") else word


def _of_job(path: str, words: list[str]) -> Recipe:
    """A job of ours: overrides are those of `--set`."""
    job = read_job(path, words)
    return Recipe(
        source=path,
        system="job",
        method="a loop of your own" if job.is_own else job.objective.kind,
        unit="sample",
        global_batch=job.batch.global_batch,
        accumulation=1,
        gpus=None,
        micro=job.batch.max_micro,
        eval_batch=None,
        draft=Draft(job=job.model_dump(by_alias=True)),
        foreign=None,
    )
