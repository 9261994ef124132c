"""ms-swift as planner reads it: its YAML and JSON files, and its commands `swift sft`, `swift pt` and `swift rlhf`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from planner.files.messages import cut
from planner.recipes.command import Command
from planner.recipes.config_reader import beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Recipe, Trap
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.swift.behaviour import DIALECT, prepare, trained_by
from planner.recipes.swift.keys import RULES, VERSIONS
from planner.recipes.swift.refusals import read_values, refuse_spread, refuse_together
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.launcher import is_alone, launch_of
from planner.recipes.trainer.reading import opened, started
from planner.recipes.trainer.recipe import recipe_of

_ONE = LaunchSettings(num_processes=1, counted_by="the process count without NPROC_PER_NODE")
_CONFIG = Trap(
    name="does not load",
    text="ms-swift 4 refuses --config. Write the file right behind the command: swift sft FILE.",
)
_ALONE = Trap(
    name="one process",
    text="The command starts one process, and spreads the model over all GPUs that it sees. More GPUs make the same "
    "batch then. The table is for NPROC_PER_NODE set to its counts.",
)
_MOST_DIGITS = 5


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    command, tree, repeats = found.command, dict(found.tree), list(found.repeats)
    config, arguments = _file_of(list(found.arguments)) if command else ("", list(found.arguments))
    if config and command and "swift/cli/" in command.path:
        how = f"Write its keys as options, or start swift {PurePath(command.path).stem} {cut(config)}"
        raise recipe_error(found.source, f"{cut(config)}: {cut(command.path)} reads no file. {how}")
    if config:
        tree = mapping_of(text_of(beside(found.source, config)), config, repeats)
    tree = {name.replace("-", "_"): its for name, its in tree.items()}
    by_file = tree["ENV"] if isinstance(tree.get("ENV"), dict) else {}
    environment = {str(name): str(its) for name, its in by_file.items()}
    environment |= {**(command.environment if command else {}), **options.env}
    keys = opened(
        config or found.source, tree, arguments, options,
        rules=RULES, versions=VERSIONS, dialect=DIALECT, fix="--{} VALUE",
        check=read_values,
    )  # fmt: skip
    options = replace(options, env=environment)
    launch = _launch(found, command, options, keys)
    its_own = command is not None and command.script.startswith("swift ")
    seen = _seen(environment) if its_own or command is None else None
    if seen:
        refuse_spread(keys, *seen)
    prepare(keys, options.gpus or (launch.num_processes if launch else None) or 1)
    name = command.script.removeprefix("swift ").removesuffix(".py") if command else ""
    name = name if name in {"sft", "pt", "rlhf"} else ""
    trained = trained_by(keys, name)
    refuse_together(keys, trained.method, name)
    recipe = recipe_of(keys, options, trained, DIALECT, launch)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        traps = (_ALONE,) if launch is _ONE else _spread(*seen) if seen else ()
        traps += (_CONFIG,) if command and config and found.arguments[0] != config else ()
        facts = replace(facts, is_launched=True, may_shard=keys.has("fsdp") or not its_own)
        recipe = replace(recipe, foreign=replace(facts, own_traps=(*facts.own_traps, *traps)))
    recipe = replace(recipe, repeats=tuple(each.note for each in repeats))
    return started(recipe, keys, found, options, config, arguments)


def _seen(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The GPUs that a machine's processes see together, and how many these are. None if nothing says it."""
    visible, said = environment.get("CUDA_VISIBLE_DEVICES", ""), environment.get("NPROC_PER_NODE", "1")
    devices = [each.strip() for each in visible.split(",")]
    is_known = all(each.isdecimal() for each in devices) and said.isdecimal() and len(said) <= _MOST_DIGITS
    if not is_known or not int(said) or environment.get("SWIFT_SINGLE_DEVICE_MODE") == "1":
        return None
    return len(devices), int(said)


def _spread(gpus: int, processes: int) -> tuple[Trap, ...]:
    """What to know if each process sees several GPUs, over which transformers then spreads its model (`is_mp`)."""
    if gpus < 2 * processes:
        return ()
    text = (
        f"Each of {processes} processes spreads the model over {gpus // processes} of the {gpus} GPUs in "
        "CUDA_VISIBLE_DEVICES. The table counts processes."
    )
    return (Trap(name="several GPUs per process", text=text),)


def _file_of(arguments: list[str]) -> tuple[str, list[str]]:
    """The file that a command names, empty if none, and its other arguments. ms-swift 3 has `--config FILE`, too."""
    if arguments and arguments[0].endswith(YAML):
        return arguments[0], arguments[1:]
    at = arguments.index("--config") if "--config" in arguments[:-1] else -1
    return ("", arguments) if at < 0 else (arguments[at + 1], arguments[:at] + arguments[at + 2 :])


def _launch(
    found: RecipeSource, command: Command | None, options: RecipeOptions, keys: KeyReader
) -> LaunchSettings | None:
    """The launcher's settings, None if nothing says them (cli/main.py)."""
    environment: Mapping[str, str] = options.env
    if command is None and not {"NPROC_PER_NODE", "NNODES"} & set(environment):
        return read_launch(options.accelerate) if options.accelerate else None
    if command and not command.script.startswith("swift "):
        return _ONE if is_alone(command) else launch_of(command, options, keys, found.source)
    said = {name: environment[name] for name in ("NPROC_PER_NODE", "NNODES") if name in environment}
    if not said:
        return _ONE
    count = 1
    for name, value in said.items():
        if value.isdecimal() and 1 <= len(value) <= _MOST_DIGITS and int(value):
            count *= int(value)
        elif not options.gpus:
            keys.missing(name, value, f"{name}: found {value[:40] or 'nothing'}. Write a count")
        else:
            return None
    return LaunchSettings(num_processes=count, counted_by=" x ".join(said))
