"""Reads and writes accelerate's configuration files, which say how many processes start, and how."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.disk import is_file
from planner.recipes.config_reader import beside, mapping_of, text_of
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.recipe import Recipe
from planner.recipes.repeats import RepeatedKey

_CLIP = "deepspeed_config.gradient_clipping"


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """The launcher's settings on which batches or gradients depend."""

    num_processes: int | None
    """on all machines together"""
    kind: str = ""
    """FSDP, DEEPSPEED, MULTI_GPU, NO, or empty if unknown"""
    accumulation: int | None = None
    """accumulation steps in DeepSpeed's section, None if `auto` or missing"""
    mixed_precision: str = ""
    """bf16, fp16, no, or empty if unknown"""
    clip: float | None = None
    """DeepSpeed's gradient_clipping, None if `auto` or missing"""
    machines: int = 1
    source: str = ""
    """the file or option that says so, for messages"""
    repeats: tuple[str, ...] = ()
    """a text for each key that the file has twice"""


def is_accelerate(tree: Mapping[str, Any]) -> bool:
    """Whether these are the keys of an accelerate file."""
    return "distributed_type" in tree or {"num_processes", "num_machines"} <= set(tree)


def read_launch(path: str) -> LaunchSettings:
    """The settings in an accelerate file.

    Raises:
        RecipeError: the file cannot be read, is no accelerate file, or has a wrong value.
    """
    repeats: list[RepeatedKey] = []
    tree = mapping_of(text_of(path, "accelerate config"), path, repeats)
    keys = KeyReader(source=path, entries=flat(tree, path), fix="KEY: VALUE")
    if not is_accelerate(tree):
        keys.wrong("found no keys of an accelerate file (distributed_type, num_processes). Write the path of one")
        keys.raise_mistakes()
    keys.entries = {**keys.entries, **_deepspeed_file(keys, path)}
    accumulation = keys.value("deepspeed_config.gradient_accumulation_steps")
    launch = LaunchSettings(
        num_processes=keys.whole("num_processes") if keys.has("num_processes") else None,
        kind=str(keys.value("distributed_type", "")).upper(),
        accumulation=keys.whole("deepspeed_config.gradient_accumulation_steps")
        if isinstance(accumulation, int)
        else None,
        mixed_precision=_precision_of(keys.value("mixed_precision")),
        clip=keys.number(_CLIP) if isinstance(keys.value(_CLIP), int | float) else None,
        machines=keys.whole("num_machines", 1),
        source=path,
        repeats=tuple(f"{path}: {each.note}" for each in repeats),
    )
    for size in ("tp_size", "cp_size", "sp_size"):
        name = f"parallelism_config.parallelism_config_{size}"
        if keys.whole(name, 1) > 1:
            keys.refuse(name, "Those GPUs share a micro-batch: remove it, and write the count of data-parallel GPUs")
    if launch.num_processes and launch.num_processes % launch.machines:
        keys.wrong(
            f"num_processes: {launch.num_processes} is no multiple of num_machines {launch.machines}. Correct one"
        )
    keys.raise_mistakes()
    return launch


def _deepspeed_file(keys: KeyReader, path: str) -> dict[str, Entry]:
    """The keys of the DeepSpeed file that an accelerate file names, if it is on this machine. They replace its own."""
    name = keys.value("deepspeed_config.deepspeed_config_file")
    places = [Path(name), Path(path).parent / name] if isinstance(name, str) else []
    file = next((str(place) for place in places if is_file(place)), None)
    return flat(mapping_of(text_of(file), file), file, prefix="deepspeed_config.") if file else {}


def _precision_of(value: Any) -> str:
    """`mixed_precision` as text. YAML reads a bare `no` as false."""
    return "no" if value is False else str(value or "").lower()


def local_file(recipe: Recipe) -> str:
    """The path of the recipe's accelerate file on this machine, empty if there is none."""
    path = beside(recipe.source, recipe.launch_file) if recipe.launch_file else ""
    return path if path and is_file(path) else ""


def machine_notes(path: str, gpus: int) -> list[str]:
    """Notes on an accelerate file for several machines. Its `num_processes` counts all of them together."""
    machines = read_launch(path).machines
    if gpus % machines:
        return [f"num_machines is {machines} in {path}, which does not divide {gpus}"]
    each = (
        f"Start the command on each machine (--machine_rank) with {gpus // machines} GPUs, or write 1 for one machine"
    )
    return [f"num_machines is {machines} in {path}. {each}"] if machines > 1 else []


def with_counts(text: str, gpus: int, accumulation: int) -> str:
    """The text of an accelerate file with other counts of processes and accumulation steps."""
    text = re.sub(r"^num_processes:.*", f"num_processes: {gpus}", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s+gradient_accumulation_steps:).*", rf"\1 {accumulation}", text, flags=re.MULTILINE)
    has_count = re.search(r"^num_processes:", text, re.MULTILINE)
    return text if has_count else f"{text.rstrip()}\nnum_processes: {gpus}\n"


def file_text(gpus: int, accumulation: int, *, kind: str = "DEEPSPEED", precision: str = "bf16") -> str:
    """A new accelerate file for one machine. `precision` is a job's: bf16 or fp32."""
    mixed = "'no'" if precision == "fp32" else "bf16"
    lines = ["compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}"]
    if kind == "DEEPSPEED":
        lines += ["deepspeed_config:", f"  gradient_accumulation_steps: {accumulation}", "  zero_stage: 3"]
    return "\n".join([*lines, f"mixed_precision: {mixed}", "num_machines: 1", f"num_processes: {gpus}", ""])
