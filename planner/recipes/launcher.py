"""What starts a script: the launcher's own options, its file, or a file that a system ships, by its name."""

from dataclasses import replace
from pathlib import Path

from planner.base.disk import is_file
from planner.files.words import cut
from planner.recipes import accelerate, halos, trl
from planner.recipes.accelerate import Launch
from planner.recipes.command import Command
from planner.recipes.drafting import Options
from planner.recipes.entries import Keys
from planner.recipes.scalars import shell_names

_MAX_DIGITS = 12
# trl/accelerate_configs of TRL 0.19 to 1.16: these say 8 processes and bf16.
SHIPPED_BY_TRL = ("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3")


def beside(source: str, path: str) -> str:
    """A path that a command names: from here, or from the folder that the command's file lies in or below."""
    places = [Path(path), *(parent / path for parent in list(Path(source).parents)[:3])]
    return str(next((place for place in places if is_file(place)), places[0]))


def launch_of(command: Command, options: Options, keys: Keys, source: str) -> Launch | None:
    """What the launcher's own options, its file, or the file's shipped name say. Mistakes are noted in `keys`."""
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
    elif command.script in trl.METHODS and file in SHIPPED_BY_TRL:
        kind = "DEEPSPEED" if file.startswith("zero") else "FSDP" if file.startswith("fsdp") else "MULTI_GPU"
        launch = Launch(
            num_processes=8,
            kind=kind,
            accumulation=1 if file == "zero1" else None,
            mixed_precision="bf16",
            source=f"{file}, as TRL ships it",
        )
    elif file and (shipped := halos.processes_of(file)):
        launch = Launch(num_processes=shipped, kind="FSDP", source=f"{file}, as HALOs ships it")
    names = shell_names(said or "")
    if not said or (names and options.gpus):
        return launch
    if not said.isdigit() or not 1 <= int(said[:7]) <= 65_536:
        keys.missing(whose, said, f"{whose}: found {cut(said)}; write a count")
        return replace(launch or Launch(num_processes=None), num_processes=options.gpus or 1, source=whose)
    return replace(launch or Launch(num_processes=None), num_processes=int(said), source=whose)


def _processes(each: str, nodes: str) -> str:
    """Of torchrun, on all nodes; what is no number stays, to be refused."""
    both = each.isdigit() and nodes.isdigit() and len(each + nodes) <= _MAX_DIGITS
    return str(int(each) * int(nodes)) if both else f"{nodes} x {each}"
