"""Reads how a script is launched: from the launcher's options, its file, or the name of a file that a system ships."""

import re
from collections.abc import Mapping
from dataclasses import replace

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes.command import Command
from planner.recipes.config_reader import beside
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader
from planner.recipes.rule import KeyRule, Rules
from planner.recipes.scalars import TRUE_TEXTS, has_shell, scalar
from planner.recipes.trainer import accelerate
from planner.recipes.trainer.accelerate import DeepSpeedSizes, LaunchSettings
from planner.recipes.trainer.launch_keys import ACCELERATE_LAUNCH, VARIABLES
from planner.recipes.trl.keys import METHODS

_MAX_DIGITS = 12
_WORLD = "WORLD_SIZE"
_EACH = "PET_NPROC_PER_NODE"
_STEPS = "gradient_accumulation_steps"
_PYTHON = re.compile(r"(?:^|/)python[\d.]*$")
_LAUNCHERS = re.compile(
    r"(?:^|[/.])(?:accelerate|accelerate-launch|launch|torchrun|deepspeed|srun|mpirun|mpiexec|horovodrun|trl)$"
    r"|accelerate\.commands\.|torch\.distributed\."
)
_PLAIN_LAUNCHERS = re.compile(r"(?:^|/)(?:torchrun|deepspeed|mpirun|mpiexec)$|torch\.distributed\.")
_OF_ACCELERATE = re.compile(r"(?:^|[/.])(?:accelerate|accelerate-launch|trl)$|accelerate\.commands\.")
_TORCHRUN = re.compile(r"(?:^|/)torchrun$|^torch\.distributed\.(?:run|launch)$")
# Values of torchrun's --nproc_per_node with which it starts a process for each device of the machine.
_OF_MACHINE = ("gpu", "auto", "cpu", "xpu")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
# Files in trl/accelerate_configs of TRL 0.19 to 1.16. Each says 8 processes and bf16.
SHIPPED_BY_TRL = ("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3")
ONE_PROCESS = "single_gpu"
"""TRL's file with distributed_type NO: accelerate starts one process, although num_processes is 8 in it"""
# HALOs' accelerate_config/fsdp_NAME.yaml -> the number of processes in the file.
_SHIPPED_BY_HALOS = {"2gpu": 2, "4gpu": 4, "8gpu": 8, "2x2gpu": 4, "2x4gpu": 8, "2x8gpu": 16}


def launch_of(command: Command, options: RecipeOptions, keys: KeyReader, source: str) -> LaunchSettings | None:
    """The launcher's settings, by its options, variables and file, or the file's shipped name. None if none is known.

    Mistakes are added to `keys`. `source` is the recipe, beside which the launcher's file may be.
    """
    launcher = {name.lstrip("-").replace("-", "_"): its for name, its in command.launcher.items() if name[:2] == "--"}
    _refuse(keys, ACCELERATE_LAUNCH, launcher)
    environment = {**command.environment, **options.env}
    _refuse(keys, VARIABLES, environment)
    said, whose = _count(launcher, command, environment)
    launch = _of_options(_of_file(command, launcher, options, source), launcher, environment, keys, source)
    nodes, _, each = said.partition(" x ")
    of_machine = each in _OF_MACHINE and nodes.isdecimal()
    if of_machine and options.gpus and not options.gpus % max(int(nodes[:_MAX_DIGITS]), 1):
        return launch
    if not said or (has_shell(said) and options.gpus):
        return launch
    if not said.isdecimal() or not 1 <= int(said[:7]) <= 65_536:
        fix = f"Write a count, or {options.gpus_option} W" if of_machine and not options.gpus else "Write a count"
        keys.missing(whose, said, f"{whose}: found {cut(said)}. {fix}")
        return replace(launch or LaunchSettings(num_processes=None), num_processes=options.gpus or 1, source=whose)
    if launch and launch.kind == "NO" and int(said) > 1:
        keys.wrong(
            f"{whose}: found {said}, but {launch.source} has distributed_type NO, with which accelerate starts one "
            "process. Write --multi_gpu before the script"
        )
    known = launch or LaunchSettings(num_processes=None)
    return replace(known, num_processes=int(said), source=known.source or whose, counted_by=whose)


def is_alone(command: Command) -> bool:
    """Whether Python starts the script without a launcher, in one process."""
    words = [word for word in command.launched if not _ASSIGNED.match(word)]
    starts = not words or ("uv" in words and "run" in words) or any(map(_PYTHON.search, words))
    return starts and not is_launched(command)


def is_launched(command: Command) -> bool:
    """Whether a launcher, such as accelerate or torchrun, starts the script."""
    return any(_LAUNCHERS.search(word) for word in command.launched)


def never_shards(command: Command) -> bool:
    """Whether a launcher starts the script that reads no file of accelerate, such as torchrun."""
    is_plain = any(_PLAIN_LAUNCHERS.search(word) for word in command.launched)
    return is_plain and not any(_OF_ACCELERATE.search(word) for word in command.launched)


def _refuse(keys: KeyReader, rules: Rules, found: Mapping[str, str]) -> None:
    """Notes options or variables with which the batch is unknown."""
    for row in rules:
        name, effect = row.name, row.effect
        if name in found and not has_shell(found[name]) and (fix := _fix(row, found[name])):
            keys.wrong(f"--{name}: found {cut(found[name])}. {fix}")
        if effect is None:
            continue
        value = scalar(found[name]) if name in found else None
        if rules is VARIABLES and effect.planner == "reads" and name != _WORLD and has_shell(str(value)):
            keys.missing(name, str(value), f"{name}: found {cut(str(value))}. Write its value")
        if effect.planner == "refuses" and str(value).lower() not in {str(each).lower() for each in effect.plain}:
            shown = f"--{name}" if rules is ACCELERATE_LAUNCH else name
            keys.wrong(f"{shown}: found {cut(found[name]) or 'it'}. {effect.how}")


def _fix(row: KeyRule, said: str) -> str:
    """What to write instead of a value that the launcher does not take. Empty if it takes it."""
    if row.choices:
        return "" if said in row.choices else f"Write {', '.join(row.choices)}"
    if row.value == "whole":
        wanted = "above 0" if row.least else "of at least 0"
        return "" if said.isdecimal() and int(said[:_MAX_DIGITS]) >= row.least else f"Write a whole number {wanted}"
    if row.value == "number":
        return "" if isinstance(scalar(said), int | float) else "Write a number"
    return ""


def _count(launcher: Mapping[str, str], command: Command, environment: Mapping[str, str]) -> tuple[str, str]:
    """The number of processes on all machines as text, empty if unknown, and the options that say it."""
    if said := launcher.get("num_processes"):
        return said, "--num_processes"
    if each := launcher.get("nproc_per_node"):
        return _processes(each, _nodes(launcher, environment)), "--nnodes x --nproc_per_node"
    if each := launcher.get("num_gpus"):
        return _processes(each, launcher.get("num_nodes", "1")), "--num_nodes x --num_gpus"
    if any(_TORCHRUN.search(word) for word in command.launched):
        each = environment.get(_EACH, "1")
        whose = _EACH if _EACH in environment else "torchrun's count without --nproc_per_node"
        return _processes(each, _nodes(launcher, environment)), whose
    return (command.environment.get(_WORLD, ""), _WORLD) if is_alone(command) else ("", "")


def _nodes(launcher: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The number of torchrun's machines as text. A range of one number, such as `2:2`, is that number."""
    said = launcher.get("nnodes", environment.get("PET_NNODES", "1"))
    least, _, most = said.partition(":")
    return least if least == most else said


def _of_file(
    command: Command, launcher: Mapping[str, str], options: RecipeOptions, source: str
) -> LaunchSettings | None:
    """The settings in the launcher's file. None if no file is named."""
    file = options.accelerate or launcher.get("config_file")
    if file and is_file(beside(source, file)):
        return accelerate.read_launch(beside(source, file))
    if options.accelerate:
        return accelerate.read_launch(options.accelerate)
    if not file:
        return None
    return _shipped(file, command.script) or LaunchSettings(num_processes=None, unread=(cut(file),))


def _of_options(
    launch: LaunchSettings | None,
    launcher: Mapping[str, str],
    environment: Mapping[str, str],
    keys: KeyReader,
    source: str,
) -> LaunchSettings | None:
    """The settings with those of options and variables, which win over the file."""
    kind = _kind(launcher, environment)
    known = launch or LaunchSettings(num_processes=None)
    mesh, shards = _mesh(launcher, environment, keys)
    if kind and kind != known.kind:
        known = replace(known, kind=kind, deepspeed=None)
    if known.kind == "DEEPSPEED":
        known = _with_deepspeed(known, launcher, environment, keys, source)
    if mesh is not None:
        known = replace(known, mesh=mesh)
    if (precision := launcher.get("mixed_precision", "")) and not has_shell(precision):
        known = replace(known, mixed_precision=precision, source=known.source or "the launcher's options")
    is_used = "use_parallelism_config" in launcher or _is_true(environment, "ACCELERATE_USE_PARALLELISM_CONFIG")
    uses_fsdp = known.kind == "FSDP" or "use_fsdp" in launcher or _is_true(environment, "ACCELERATE_USE_FSDP")
    if is_used and uses_fsdp and shards == 1:
        keys.wrong(accelerate.NOTHING_TO_SHARD)
    return launch if known == LaunchSettings(num_processes=None) else known


def _kind(launcher: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """FSDP or DEEPSPEED if an option or a variable chooses it, MULTI_GPU for --multi_gpu. Empty otherwise."""
    if "use_deepspeed" in launcher or _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        return "DEEPSPEED"
    if "use_fsdp" in launcher or _is_true(environment, "ACCELERATE_USE_FSDP"):
        return "FSDP"
    return "MULTI_GPU" if "multi_gpu" in launcher else ""


def _is_true(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in TRUE_TEXTS


def _with_deepspeed(
    launch: LaunchSettings,
    launcher: Mapping[str, str],
    environment: Mapping[str, str],
    keys: KeyReader,
    source: str,
) -> LaunchSettings:
    """DeepSpeed's sizes by options and variables. Those in DeepSpeed's own file win, and 1 step is its default."""
    # accelerate launch writes what its file says over the variable.
    is_in_file = f"deepspeed_config.{_STEPS}" in launch.beside_deepspeed
    if launch.source and "ACCELERATE_DEEPSPEED_CONFIG_FILE" in environment:
        keys.wrong(f"ACCELERATE_DEEPSPEED_CONFIG_FILE: {launch.source} configures DeepSpeed, too. Remove one of them")
    file = launcher.get("deepspeed_config_file") or environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    said = launcher.get(_STEPS) or ("" if is_in_file else environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", ""))
    sizes = launch.deepspeed or DeepSpeedSizes()
    if said.isdecimal() and len(said) <= _MAX_DIGITS:
        sizes = replace(sizes, accumulation=int(said), source="the launcher")
    elif said == "auto":
        sizes = replace(sizes, accumulation=None)
    elif said:
        keys.missing(_STEPS, said, f"{_STEPS} of the launcher: found {cut(said)}. Write a count or auto")
    if file and file != "none":
        place = beside(source, file)
        if launch.beside_deepspeed:
            keys.wrong(
                f"{launch.source}: accelerate refuses {launch.beside_deepspeed[0]} beside {cut(file)}. Remove one of "
                "them"
            )
        if not is_file(place):
            return replace(launch, deepspeed=sizes, unread=(*launch.unread, cut(file)))
        inner = KeyReader(source=file, entries=accelerate.deepspeed_entries(place))
        found = accelerate.sizes_in(inner, "deepspeed_config.")
        keys.mistakes += inner.mistakes
        steps = found.accumulation if inner.has(f"deepspeed_config.{_STEPS}") else 1
        auto = inner.value(f"deepspeed_config.{_STEPS}") == "auto"
        sizes = replace(found, accumulation=sizes.accumulation if auto else steps, source=file)
    return replace(launch, deepspeed=sizes)


def _mesh(launcher: Mapping[str, str], environment: Mapping[str, str], keys: KeyReader) -> tuple[int | None, int]:
    """The product of the data-parallel sizes, None if none is above 1, and dp_shard_size."""
    sizes = []
    for name in ("dp_replicate_size", "dp_shard_size"):
        said = launcher.get(f"parallelism_config_{name}") or environment.get(f"PARALLELISM_CONFIG_{name.upper()}", "1")
        if not said.isdecimal() or len(said) > _MAX_DIGITS:
            keys.missing(name, said, f"parallelism_config_{name}: found {cut(said)}. Write a count")
            said = "1"
        sizes.append(int(said))
    return (sizes[0] * sizes[1] if max(sizes) > 1 else None), sizes[1]


def _shipped(file: str, script: str) -> LaunchSettings | None:
    """The settings in a file that TRL or HALOs ships, by its name. None if neither ships it."""
    if script in METHODS and file in SHIPPED_BY_TRL:
        kind = "DEEPSPEED" if file.startswith("zero") else "FSDP" if file.startswith("fsdp") else "MULTI_GPU"
        return LaunchSettings(
            num_processes=8,
            kind=kind,
            deepspeed=DeepSpeedSizes(accumulation=1 if file == "zero1" else None, source=f"{file}, as TRL ships it")
            if kind == "DEEPSPEED"
            else None,
            mixed_precision="bf16",
            source=f"{file}, as TRL ships it",
        )
    if script in METHODS and file == ONE_PROCESS:
        return LaunchSettings(num_processes=1, kind="NO", mixed_precision="bf16", source=f"{file}, as TRL ships it")
    found = re.search(r"accelerate_config/fsdp_(\w+)\.yaml$", file)
    processes = _SHIPPED_BY_HALOS.get(found[1]) if found else None
    return (
        LaunchSettings(num_processes=processes, kind="FSDP", source=f"{file}, as HALOs ships it") if processes else None
    )


def _processes(each: str, nodes: str) -> str:
    """The number of processes on all nodes as text. A value that is no number is kept, so that it is refused."""
    both = each.isdecimal() and nodes.isdecimal() and len(each + nodes) <= _MAX_DIGITS
    return str(int(each) * int(nodes)) if both else f"{nodes} x {each}"
