"""LLaMA-Factory as a `System`: its YAML and JSON files, and the commands that train them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.recipes.command import Command
from planner.recipes.config_reader import beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.engine import has_marks
from planner.recipes.entries import KeyReader
from planner.recipes.llamafactory.behaviour import DIALECT, prepare, refuse, trained_by
from planner.recipes.llamafactory.keys import RULES, VERSIONS
from planner.recipes.recipe import Recipe
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.system import System
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.launcher import is_alone, is_launched, launch_of
from planner.recipes.trainer.reading import opened
from planner.recipes.trainer.recipe import recipe_of

CLI = ("llamafactory-cli train", "lmf train")
_TRUE = ("true", "y", "1")
# Variables that choose another trainer, with other keys and another batch.
_OTHERS = {"USE_MCA": "Megatron's trainer (mca)", "USE_V1": "its trainer v1"}


def detect(found: RecipeSource) -> bool:
    """Whether a file has keys of LLaMA-Factory alone, or a command starts it."""
    if found.command is None:
        return has_marks(RULES, found.tree)
    if found.command.script in CLI:
        return True
    if not found.command.script.endswith(".py"):
        return False
    tree = _file_of(found)[0] if found.command.script == "train.py" else {}
    return has_marks(RULES, tree) or has_marks(RULES, dict.fromkeys(found.keys))


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
    tree, config, arguments = _file_of(found)
    keys = opened(
        config or found.source, tree, arguments, options,
        rules=RULES, versions=VERSIONS, dialect=DIALECT, fix="{}=VALUE",
    )  # fmt: skip
    prepare(keys)
    refuse(keys)
    trained = trained_by(keys)
    keys.method = trained.method
    options = replace(options, env=environment)
    launch = _launch(found, options, keys)
    recipe = recipe_of(keys, options, trained, DIALECT, launch)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        launched = command is None or command.script in CLI or is_launched(command)
        alone = command is not None and command.script not in CLI and is_alone(command)
        recipe = replace(
            recipe, foreign=_started(replace(facts, is_launched=launched, is_alone=alone), found, options, keys)
        )
    keys.raise_mistakes()
    return replace(
        recipe,
        script=command.script if command else "",
        arguments=tuple(arguments),
        config=config,
        environment=variables_of(options.env),
    )


def _started(facts: TrainerFacts, found: RecipeSource, options: RecipeOptions, keys: KeyReader) -> TrainerFacts:
    """The facts with what depends on how the recipe is started (launcher.py and hparams/parser.py)."""
    if _is_set(options.env, "USE_RAY"):
        workers = keys.read("ray_num_workers")
        return replace(facts, workers=workers, limits=(Limit(text=f"Ray waits for {workers} GPUs", least=workers),))
    by_cli = found.command is None or found.command.script in CLI
    has_file = any(name.partition(".")[0] == "deepspeed" and its.value for name, its in keys.entries.items())
    if by_cli and has_file and not _is_set(options.env, "FORCE_TORCHRUN"):
        text = "ValueError: deepspeed on 1 GPU needs FORCE_TORCHRUN=1"
        return replace(facts, limits=(*facts.limits, Limit(text=text, least=2)))
    return facts


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in _TRUE


def _file_of(found: RecipeSource) -> tuple[Mapping[str, object], str, Sequence[str]]:
    """The keys of the recipe's file, its path, and the arguments behind it. A command's first argument is the file."""
    if found.command is None:
        return found.tree, found.source, found.arguments
    first, *rest = [*found.arguments, ""]
    if not first.endswith(YAML) or first.startswith("-"):
        return {}, "", found.arguments
    path = beside(found.source, first)
    return mapping_of(text_of(path), first), first, tuple(rest[:-1])


def _launch(found: RecipeSource, options: RecipeOptions, keys: KeyReader) -> LaunchSettings | None:
    """The launcher's settings, None if nothing says them (launcher.py)."""
    command = found.command
    if _is_set(options.env, "USE_RAY"):
        return LaunchSettings(num_processes=keys.read("ray_num_workers"), source="ray_num_workers (USE_RAY)")
    if command is None:
        return read_launch(options.accelerate) if options.accelerate else None
    if command.script not in CLI:
        return launch_of(command, options, keys, found.source)
    count, source = _processes(command, options.env)
    return LaunchSettings(num_processes=count, source=source) if count else None


def _processes(command: Command, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """How many processes `llamafactory-cli` starts, and what says so. None if nothing does: one for each device."""
    each, nodes = environment.get("NPROC_PER_NODE", ""), environment.get("NNODES", "1")
    devices = command.launcher.get("CUDA_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES", ""))
    if each.isdigit() and nodes.isdigit() and len(each + nodes) <= 8:
        return max(int(each) * int(nodes), 1), "NNODES x NPROC_PER_NODE"
    if devices and all(part.strip().isdigit() for part in devices.split(",")):
        return len(devices.split(",")), "CUDA_VISIBLE_DEVICES"
    return None, ""


SYSTEM = System(
    name="llamafactory",
    title="LLaMA-Factory",
    detect=detect,
    read=read,
    rules=RULES,
    versions="LLaMA-Factory 0.9.5 (its trainer v0)",
    listed="LLaMA-Factory",
    marks=RULES.of(mark=True)[:2],
    programs=CLI[:1],
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
)
