"""Reads how a script is launched: from the launcher's options, its file, or the name of a file that a system ships."""

import re
from dataclasses import replace

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes import accelerate
from planner.recipes.accelerate import LaunchSettings
from planner.recipes.command import Command
from planner.recipes.config_reader import beside
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader
from planner.recipes.scalars import has_shell
from planner.recipes.trl_keys import METHODS

_MAX_DIGITS = 12
# Files in trl/accelerate_configs of TRL 0.19 to 1.16. Each says 8 processes and bf16.
SHIPPED_BY_TRL = ("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3")
# HALOs' accelerate_config/fsdp_NAME.yaml -> the number of processes in the file.
_SHIPPED_BY_HALOS = {"2gpu": 2, "4gpu": 4, "8gpu": 8, "2x2gpu": 4, "2x4gpu": 8, "2x8gpu": 16}


def launch_of(command: Command, options: RecipeOptions, keys: KeyReader, source: str) -> LaunchSettings | None:
    """The launcher's settings, by its options, its file or the file's shipped name. None if nothing is known.

    Mistakes are added to `keys`. `source` is the recipe, beside which the launcher's file may be.
    """
    launcher = command.launcher
    said, whose = launcher.get("--num_processes"), "--num_processes"
    if not said and (each := launcher.get("--nproc_per_node") or launcher.get("--nproc-per-node")):
        said, whose = _processes(each, launcher.get("--nnodes", "1")), "--nnodes x --nproc_per_node"
    if not said and (each := launcher.get("--num_gpus")):
        said, whose = _processes(each, launcher.get("--num_nodes", "1")), "--num_nodes x --num_gpus"
    file = options.accelerate or launcher.get("--config_file")
    launch = None
    if file and is_file(beside(source, file)):
        launch = accelerate.read_launch(beside(source, file))
    elif options.accelerate:
        launch = accelerate.read_launch(options.accelerate)
    elif file:
        launch = _shipped(file, command.script)
    if not said or (has_shell(said) and options.gpus):
        return launch
    if not said.isdigit() or not 1 <= int(said[:7]) <= 65_536:
        keys.missing(whose, said, f"{whose}: found {cut(said)}. Write a count")
        return replace(launch or LaunchSettings(num_processes=None), num_processes=options.gpus or 1, source=whose)
    return replace(launch or LaunchSettings(num_processes=None), num_processes=int(said), source=whose)


def _shipped(file: str, script: str) -> LaunchSettings | None:
    """The settings in a file that TRL or HALOs ships, by its name. None if neither ships it."""
    if script in METHODS and file in SHIPPED_BY_TRL:
        kind = "DEEPSPEED" if file.startswith("zero") else "FSDP" if file.startswith("fsdp") else "MULTI_GPU"
        return LaunchSettings(
            num_processes=8,
            kind=kind,
            accumulation=1 if file == "zero1" else None,
            mixed_precision="bf16",
            source=f"{file}, as TRL ships it",
        )
    found = re.search(r"accelerate_config/fsdp_(\w+)\.yaml$", file)
    processes = _SHIPPED_BY_HALOS.get(found[1]) if found else None
    return (
        LaunchSettings(num_processes=processes, kind="FSDP", source=f"{file}, as HALOs ships it") if processes else None
    )


def _processes(each: str, nodes: str) -> str:
    """The number of processes on all nodes as text. A value that is no number is kept, so that it is refused."""
    both = each.isdigit() and nodes.isdigit() and len(each + nodes) <= _MAX_DIGITS
    return str(int(each) * int(nodes)) if both else f"{nodes} x {each}"
