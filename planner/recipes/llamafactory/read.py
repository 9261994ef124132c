"""LLaMA-Factory as planner reads it: its YAML and JSON files, and the commands that train them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from planner.errors import RecipeError
from planner.files.messages import cut
from planner.recipes.command import Command
from planner.recipes.config_reader import mapping_of, recipe_error
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.llamafactory.behaviour import DIALECT, NEVER, limits, prepare, refuse_in_job, trained_by
from planner.recipes.llamafactory.keys import RULES, VERSIONS
from planner.recipes.llamafactory.refusals import refuse_together, refuse_values
from planner.recipes.llamafactory.system import CLI, file_of
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import has_shell, shell_names
from planner.recipes.source import RecipeSource
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.launcher import is_alone, launch_of
from planner.recipes.trainer.reading import opened, started
from planner.recipes.trainer.recipe import recipe_of

_TRUE = ("true", "y", "1")
_MOST_DIGITS = 4
# Variables that choose another trainer, with other keys and another batch.
_OTHERS = {"USE_MCA": "Megatron's trainer (mca)", "USE_V1": "its trainer v1"}
# Keys of those trainers alone.
_THEIR_KEYS = {
    "train_dataset": _OTHERS["USE_V1"], "dist_config": _OTHERS["USE_V1"],
    "tensor_model_parallel_size": _OTHERS["USE_MCA"], "pipeline_model_parallel_size": _OTHERS["USE_MCA"],
    "expert_model_parallel_size": _OTHERS["USE_MCA"],
}  # fmt: skip


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    command = found.command
    environment = {**(command.environment if command else {}), **options.env}
    for name, other in _OTHERS.items():
        if _is_set(environment, name):
            raise recipe_error(found.source, f"{name}: found {other}, whose keys planner does not read. Remove it")
    _refuse_unset_file(found)
    tree, config, arguments = file_of(found)
    for name, other in _THEIR_KEYS.items():
        if name in tree:
            text = f"{name}: found a key of {other}, whose batch planner does not read"
            raise recipe_error(config or found.source, text)
    keys = opened(
        config or found.source, tree, arguments, options, rules=RULES, versions=VERSIONS, dialect=DIALECT,
        fix="{}=VALUE", takes_any=_is_set(environment, "ALLOW_EXTRA_ARGS"), check=partial(_check, arguments=arguments),
    )  # fmt: skip
    if config or command is None:
        _refuse_options(keys, arguments)
    prepare(keys)
    refuse_together(keys)
    refuse_in_job(keys)
    trained = trained_by(keys)
    keys.method = trained.method
    options = replace(options, env=environment)
    launch = _launch(found, options, keys)
    recipe = recipe_of(keys, options, trained, DIALECT, launch)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        recipe = replace(recipe, foreign=_started(facts, found, options, keys))
    return started(recipe, keys, found, options, config, arguments)


def _check(keys: KeyReader, arguments: Sequence[str]) -> None:
    """Reads overrides as OmegaConf does (`no` is false, `none` is a text), and notes values that are not taken."""
    for each in arguments:
        name, sign, text = each.partition("=")
        if sign and name in keys.entries and keys.entries[name].where == COMMAND_LINE and not has_shell(text):
            with suppress(RecipeError):
                value = mapping_of(f"value: {text}", each)["value"]
                keys.entries = {**keys.entries, name: replace(keys.entries[name], value=value)}
    refuse_values(keys)


def _started(facts: TrainerFacts, found: RecipeSource, options: RecipeOptions, keys: KeyReader) -> TrainerFacts:
    """The facts with what depends on how the recipe is started (launcher.py and hparams/parser.py)."""
    command, workers = found.command, None
    by_cli = command is None or command.script in CLI
    more = list(facts.limits)
    if _is_set(options.env, "USE_RAY"):
        workers, distributed = keys.read("ray_num_workers"), 1
        more.append(Limit(text=f"Ray waits for {workers} GPUs", least=workers))
    elif by_cli:
        above_one = NEVER if _is_set(options.env, "USE_KT") else 2
        distributed = 1 if _is_set(options.env, "FORCE_TORCHRUN") else above_one
    else:
        distributed = NEVER if command is not None and is_alone(command) else 1
    if distributed == NEVER:
        text = "one process takes 1 GPU: start it by llamafactory-cli or torchrun"
        more.append(Limit(text=text, most=1))
    if keys.is_set("deepspeed") and distributed > 1:
        text = "ValueError: deepspeed on 1 GPU needs FORCE_TORCHRUN=1"
        more.append(Limit(text=text, least=distributed))
    more += limits(keys, facts, distributed)
    # No trap of the Trainer's: LLaMA-Factory has several GPUs in several processes, or refuses them.
    return replace(facts, workers=workers, limits=tuple(more), is_launched=True)


def _refuse_options(keys: KeyReader, arguments: Sequence[str]) -> None:
    """Notes options behind a file that are not `key=value`, and values that OmegaConf merges into the file's."""
    for each in arguments:
        name, sign, value = each.partition("=")
        if each.startswith(("-", "+")):
            keys.wrong(
                f"{cut(each)}: LLaMA-Factory takes only key=value behind a file. Write {name.lstrip('-+')}=VALUE"
            )
        elif sign and value.startswith("{"):
            keys.wrong(
                f"{name}: LLaMA-Factory merges {cut(value)} into the file's. Write {name}.KEY=VALUE for each key"
            )


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in _TRUE


def _refuse_unset_file(found: RecipeSource) -> None:
    """Refuses a command whose file is a shell variable without a value."""
    first = next(iter(found.arguments), "") if found.command else ""
    if has_shell(first) and not first.startswith("-") and "=" not in first:
        env = " ".join(f"--env {name}=VALUE" for name in shell_names(first)) or "the file's name"
        raise recipe_error(found.source, f"found {cut(first)}, a shell variable that is not set. Write {env}")


def _launch(found: RecipeSource, options: RecipeOptions, keys: KeyReader) -> LaunchSettings | None:
    """The launcher's settings, None if nothing says them (launcher.py)."""
    command = found.command
    if _is_set(options.env, "USE_RAY"):
        return LaunchSettings(num_processes=keys.read("ray_num_workers"), counted_by="ray_num_workers")
    if command is None:
        return read_launch(options.accelerate) if options.accelerate else None
    if command.script not in CLI:
        return launch_of(command, options, keys, found.source)
    count, source = _processes(command, options.env)
    return LaunchSettings(num_processes=count, counted_by=source) if count else None


def _processes(command: Command, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """How many processes train together, and what says so (launcher.py). None if nothing does: one for each device.

    torchrun starts `NPROC_PER_NODE` processes (the machine's devices if it is missing) on each of `NNODES` machines.
    Without FORCE_TORCHRUN, a machine with one device, or USE_KT, has one process that knows of no other machine.
    """
    visible = command.launcher.get("CUDA_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    devices, each = _devices(visible), environment.get("NPROC_PER_NODE")
    if not _is_set(environment, "FORCE_TORCHRUN"):
        if _is_set(environment, "USE_KT"):
            return 1, "the process count of USE_KT"
        if devices is not None and devices <= 1:
            ignores = each is not None or "NNODES" in environment
            return 1, "the process count without FORCE_TORCHRUN" if ignores else "CUDA_VISIBLE_DEVICES"
    nodes, told = _nodes(environment), "NNODES" in environment or _is_elastic(environment)
    if each in {None, "auto", "gpu"}:
        count, source = devices, "CUDA_VISIBLE_DEVICES"
    else:
        count, source, told = _count(each), "NPROC_PER_NODE", True
    if not nodes or not count:
        return None, ""
    return nodes * count, f"NNODES x {source}" if told else source


def _is_elastic(environment: Mapping[str, str]) -> bool:
    """Whether torchrun gets the least and the largest number of machines."""
    return all(name in environment for name in ("RDZV_ID", "MIN_NNODES", "MAX_NNODES"))


def _nodes(environment: Mapping[str, str]) -> int | None:
    """How many machines torchrun waits for, None if unknown or if the number may change."""
    if not _is_elastic(environment):
        return _count(environment.get("NNODES", "1"))
    least, most = environment["MIN_NNODES"], environment["MAX_NNODES"]
    return _count(least) if least == most else None


def _count(text: str | None) -> int | None:
    """The count in a variable, None if it is none."""
    return int(text) if text and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _devices(visible: str | None) -> int | None:
    """How many devices CUDA_VISIBLE_DEVICES leaves, None if unknown. CUDA reads up to -1, and refuses repeated ones."""
    if visible is None:
        return None
    names = [part.strip() for part in visible.split(",")] if visible.strip() else []
    names = names[: names.index("-1")] if "-1" in names else names
    if not all(name.isdecimal() for name in names):
        return None
    return len(names) if len(set(names)) == len(names) else 0
