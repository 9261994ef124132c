"""torchtune as planner reads it: its YAML, the command `tune run`, and the same batch at another GPU count."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from planner.base.disk import is_file
from planner.errors import NoExactSplit, RecipeError
from planner.files.messages import cut
from planner.recipes.command import Command
from planner.recipes.config_reader import beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader, flat
from planner.recipes.hydra.interpolation import resolve
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.scalars import Unresolved, has_shell
from planner.recipes.source import RecipeSource
from planner.recipes.system import BatchSplit
from planner.recipes.torchtune.behaviour import (
    TorchtuneFacts,
    TuneCommand,
    facts_of,
    is_distributed,
    processes_of,
    recipe_of,
    refuse_unresolved,
)
from planner.recipes.torchtune.job import recipe_from
from planner.recipes.torchtune.keys import PPO, RECIPES, RULES, VERSION
from planner.recipes.torchtune.system import SCRIPTS
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.launcher import is_launched


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a configuration or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    environment = {**(found.command.environment if found.command else {}), **options.env}
    options = replace(options, env=environment)
    tree, text, config, arguments = _file_of(found)
    keys = _keys(tree, config or found.source, arguments, options)
    told_by = ""
    if found.command is None:
        named = recipe_of(keys, text)
        if named is None:
            keys.raise_mistakes()
            raise recipe_error(found.source, "found a configuration without optimizer, which trains nothing")
        command, told_by = named
    else:
        command = _command(found.command, config, keys)
    refuse_unresolved(keys, command.recipe)
    keys.raise_mistakes()
    gpus = _gpus(keys, options, command, told_by)
    is_whole = bool(config) or found.command is None
    facts = facts_of(keys, command, gpus, is_whole=is_whole, told_by=told_by)
    whose = options.gpus_option if options.gpus else told_by or "the command"
    recipe = recipe_from(keys, facts, options, text, whose)
    keys.raise_mistakes()
    path = config or (found.source if found.command is None else command.config)
    return Recipe(
        source=found.source,
        gpus=gpus,
        script=command.recipe,
        arguments=tuple(arguments),
        config=path,
        environment=variables_of(environment),
        foreign=facts,
        **recipe,
    )


def _file_of(found: RecipeSource) -> tuple[Mapping[str, Any], str, str, Sequence[str]]:
    """The keys of the configuration and its text, its path (empty if it is not here), and the arguments behind it."""
    if found.command is None:
        return found.tree, found.text, "", found.arguments
    words = list(found.arguments)
    if "--config" not in words[:-1]:
        raise recipe_error(found.source, "--config: found none. Write --config FILE behind the recipe")
    at = words.index("--config")
    name = words[at + 1]
    arguments = [*words[:at], *words[at + 2 :]]
    places = (name, f"recipes/configs/{name}.yaml", f"configs/{name}.yaml")
    path = next((its for each in places if is_file(its := beside(found.source, each))), "")
    if path:
        text = text_of(path)
        return mapping_of(text, path), text, path, arguments
    if PurePath(name).suffix in {".yaml", ".yml"}:
        text_of(name)  # the error of a missing file
    if not any(each.startswith("batch_size=") for each in arguments):
        raise recipe_error(
            found.source,
            f"--config {cut(name)}: found no such file, and planner has none of torchtune's own. Write its path after "
            f"`tune cp {cut(name)} my.yaml`",
        )
    return {}, "", "", arguments


def _command(command: Command, config: str, keys: KeyReader) -> TuneCommand:
    """The command as one of torchtune's. Notes a mistake if its recipe is unknown, or takes no options of torchrun."""
    is_tune = command.script == "tune run"
    recipe = SCRIPTS.get(PurePath(command.path).name, command.path) if command.path not in RECIPES else command.path
    launcher = list(command.launched)
    if is_tune:
        launcher = launcher[max(at for at, word in enumerate(launcher) if word == "run") + 1 :]
    launched = bool(launcher) if is_tune else is_launched(command)
    if recipe not in RECIPES:
        keys.wrong(
            f"{cut(recipe)}: no recipe of torchtune 0.6.1 that trains. If it is a copy of one, write that one's name "
            f"instead: {', '.join(RECIPES)}"
        )
        recipe = next(iter(RECIPES))
    elif launched and not is_distributed(recipe):
        keys.wrong(f"{recipe}: trains on one GPU, and tune run refuses options of torchrun before it. Remove them")
    gpus = processes_of(launcher) if launched else None
    return TuneCommand(recipe=recipe, config=config, gpus=gpus, is_launched=launched)


def _gpus(keys: KeyReader, options: RecipeOptions, command: TuneCommand, told_by: str) -> int:
    """The GPU count that the recipe was tuned for. 1 with a mistake noted if it is not known."""
    said, option = command.gpus, options.gpus_option
    if not is_distributed(command.recipe):
        if (options.gpus or 1) > 1:
            keys.wrong(f"{option} {options.gpus}: {command.recipe} trains on one GPU. Write {option} 1")
        return 1
    if options.gpus and said and options.gpus != said and not told_by:
        keys.wrong(
            f"{option} {options.gpus}: the command starts {said} processes. Leave one of them out (convert --at is the "
            "count to write for, check --gpus has the counts to check)"
        )
    if not options.gpus and not said and not command.is_launched:
        keys.wrong(
            f"the GPU count: {command.recipe} starts only with --nproc_per_node W behind tune run. Write it, or the "
            f"count that it was tuned for ({option} W)"
        )
    elif not options.gpus and not said:
        keys.wrong(
            "the GPU count: a configuration of torchtune does not name it, and its global batch is GPUs x batch_size x "
            f"gradient_accumulation_steps. Write the count that it was tuned for ({option} W)"
        )
    return options.gpus or said or 1


# -- keys


def _keys(tree: Mapping[str, Any], source: str, arguments: Sequence[str], options: RecipeOptions) -> KeyReader:
    """The keys of a configuration with the overrides and interpolations filled in. Mistakes are noted in it."""
    mistakes: list[str] = [
        f"{cut(str(each))}: found a dot in a key. Write a section" for each in tree if "." in str(each)
    ]
    made = deepcopy(dict(tree))
    given: dict[str, Entry] = {}
    for removed in (True, False):
        for argument in arguments:
            if argument.startswith("~") == removed:
                text = _remove(made, argument[1:].partition("=")[0]) if removed else _override(made, argument, given)
                mistakes += [f"{cut(argument)}: {text}"] if text else []
    entries = resolve(flat(made, source)) | given
    return KeyReader(
        source=source,
        entries=entries,
        mistakes=mistakes,
        is_for_job=options.is_for_job,
        rules=RULES,
        versions=f"in {VERSION}",
    )


def _remove(tree: dict[str, Any], key: str) -> str:
    """Removes a key and the sections that are empty without it. Returns a mistake."""
    *path, last = key.split(".")
    sections: list[dict[str, Any]] = [tree]
    for name in path:
        below = sections[-1].get(name)
        if not isinstance(below, dict):
            return "found no such key to remove"
        sections.append(below)
    if last not in sections[-1] or last == "_component_" or _component(sections[-1][last]):
        return "found no such key to remove" if last not in sections[-1] else "torchtune removes no component"
    del sections[-1][last]
    for section, name in reversed(list(zip(sections, path, strict=False))):
        if not section[name]:
            del section[name]
    return ""


def _override(tree: dict[str, Any], argument: str, given: dict[str, Entry]) -> str:
    """Sets a key as `key=value` says (config/_utils.py). Returns a mistake."""
    if argument.count("=") != 1 or argument.startswith("-"):
        return "torchtune takes key=value with one equals sign. Write it in this form"
    key, _, text = argument.partition("=")
    if _component(tree.get(key)):
        key += "._component_"
    try:
        value = None if text == "None" else mapping_of(f"value: {text}", argument)["value"]
        value = text if "max_filename" in key else value
    except RecipeError:
        return "found a value that YAML cannot read. Correct it"
    section, path = tree, key.split(".")
    for name in path[:-1]:
        below = section.setdefault(name, {})
        if isinstance(below, list) or (isinstance(below, str) and "${" in below):
            return f"{cut(name)} is no section. Write the key in the file"
        if not isinstance(below, dict):
            section[name] = {}
        section = section[name]
    old = section.get(path[-1])
    section[path[-1]] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    found = Unresolved(text, "a shell variable that is not set") if has_shell(text) else None
    for name in list(given):
        if name == key or name.startswith(f"{key}."):
            del given[name]
    if found is not None:
        section[path[-1]] = None
        given[key] = Entry(value=found, where=COMMAND_LINE)
    return ""


def _component(value: Any) -> bool:
    return isinstance(value, dict) and "_component_" in value


# -- writing


def render_command(rendering: Rendering) -> None:
    """Lists all values of a job: planner writes the batch alone."""
    rendering.leave("model data objective train eval tracking", "YOUR_CONFIG.yaml must set it")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own overrides.

    Raises:
        NoExactSplit: the recipe trains on one GPU, or several GPUs share their samples.
    """
    recipe = split.recipe
    sizes = [f"batch_size={split.micro}", f"gradient_accumulation_steps={split.accumulation}"]
    if not split.is_own:
        command = f"tune run --nproc_per_node {split.gpus} YOUR_RECIPE --config YOUR_CONFIG.yaml {' '.join(sizes)}"
        note = "YOUR_RECIPE is one of torchtune's (tune ls), and YOUR_CONFIG.yaml has the same model, data and loss"
        return Rewrite(command=f"{split.assignments}{command}", notes=(note,))
    facts = recipe.foreign
    assert isinstance(facts, TorchtuneFacts)
    if facts.is_in_backward and split.accumulation > 1:
        raise NoExactSplit(
            f"optimizer_in_bwd takes no accumulation, and {split.arithmetic} has {split.accumulation} steps of it. "
            "Write optimizer_in_bwd=False behind the recipe, or use `planner run`"
        )
    if split.gpus > 1 and not is_distributed(recipe.script):
        raise NoExactSplit(
            f"{recipe.script} trains on one GPU. Write convert --at 1, or train the job with `planner run`"
        )
    if facts.tensor_parallel > 1:
        raise NoExactSplit(
            "with tensor_parallel_dim above 1 GPUs share their samples, and planner writes only GPUs x batch_size x "
            "gradient_accumulation_steps. Write tensor_parallel_dim=1 behind the recipe, or use `planner run`"
        )
    if recipe.script == PPO:
        sizes[0] = f"ppo_batch_size={split.batch}"
    launcher = f"--nproc_per_node {split.gpus} " if is_distributed(recipe.script) else ""
    kept = [each for each in arguments if not each.startswith("ppo_batch_size=")]
    command = " ".join([f"tune run {launcher}{recipe.script} --config {recipe.config}", *sizes, *kept])
    return Rewrite(command=f"{split.assignments}{command}")
