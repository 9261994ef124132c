"""accelerate's configuration files: how many processes are started, and in which way."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.disk import is_file
from planner.recipes.entries import Entry, Keys, flat
from planner.recipes.recipe import Recipe
from planner.recipes.texts import beside, mapping_of, text_of

_CLIP = "deepspeed_config.gradient_clipping"


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What starts a script, as far as batches depend on it."""

    num_processes: int | None
    """over all machines"""
    kind: str = ""
    """FSDP, DEEPSPEED, MULTI_GPU, NO, or empty where it is not known"""
    accumulation: int | None = None
    """of DeepSpeed's section; none where it is `auto` or not there"""
    mixed_precision: str = ""
    """bf16, fp16, no, or empty where it is not known"""
    clip: float | None = None
    """DeepSpeed's gradient_clipping; none where it is `auto` or not there"""
    machines: int = 1
    source: str = ""


def is_accelerate(tree: Mapping[str, Any]) -> bool:
    """Whether these are the keys of such a file."""
    return "distributed_type" in tree or {"num_processes", "num_machines"} <= set(tree)


def read_launch(path: str) -> LaunchSettings:
    """The file's facts.

    Raises:
        RecipeError: it cannot be read, or is none.
    """
    tree = mapping_of(text_of(path), path)
    keys = Keys(source=path, entries=flat(tree, path), fix="KEY: VALUE")
    if not is_accelerate(tree):
        keys.wrong("found no accelerate file (distributed_type, num_processes); write the path of one")
        keys.raise_mistakes()
    keys.entries = {**keys.entries, **_deepspeed_file(keys, path)}
    accumulation = keys.value("deepspeed_config.gradient_accumulation_steps")
    launch = LaunchSettings(
        num_processes=keys.whole("num_processes") if keys.has("num_processes") else None,
        kind=str(keys.value("distributed_type", "")).upper(),
        accumulation=keys.whole("deepspeed_config.gradient_accumulation_steps")
        if isinstance(accumulation, int)
        else None,
        mixed_precision=_word(keys.value("mixed_precision")),
        clip=keys.number(_CLIP) if isinstance(keys.value(_CLIP), int | float) else None,
        machines=keys.whole("num_machines", 1),
        source=path,
    )
    for size in ("tp_size", "cp_size", "sp_size"):
        name = f"parallelism_config.parallelism_config_{size}"
        if keys.whole(name, 1) > 1:
            keys.refuse(name, "those GPUs share a micro-batch; take it out, and write the count of data-parallel GPUs")
    if launch.num_processes and launch.num_processes % launch.machines:
        keys.wrong(
            f"num_processes: {launch.num_processes} do not divide over num_machines {launch.machines}; mend one of them"
        )
    keys.raise_mistakes()
    return launch


def _deepspeed_file(keys: Keys, path: str) -> dict[str, Entry]:
    """The keys of the DeepSpeed file that it names, which hold in place of its own, if that lies here."""
    name = keys.value("deepspeed_config.deepspeed_config_file")
    places = [Path(name), Path(path).parent / name] if isinstance(name, str) else []
    file = next((str(place) for place in places if is_file(place)), None)
    return flat(mapping_of(text_of(file), file), file, prefix="deepspeed_config.") if file else {}


def _word(value: Any) -> str:
    """YAML reads a bare `no` as false."""
    return "no" if value is False else str(value or "").lower()


def local_file(recipe: Recipe) -> str:
    """Where the accelerate file that a recipe names lies on this machine; empty if it does not."""
    path = beside(recipe.source, recipe.launch_file) if recipe.launch_file else ""
    return path if path and is_file(path) else ""


def machine_notes(path: str, gpus: int) -> list[str]:
    """What to do with a launch file for several machines. Its `--num_processes` counts all of them together."""
    machines = read_launch(path).machines
    if gpus % machines:
        return [f"num_machines is {machines} in {path}, which does not divide {gpus}"]
    each = f"start the command on each of them (--machine_rank), with {gpus // machines} GPUs there"
    return [f"num_machines is {machines} in {path}: {each}; for one machine write 1"] if machines > 1 else []


def with_counts(text: str, gpus: int, accumulation: int) -> str:
    """A file that starts so many processes, and is else as it was."""
    text = re.sub(r"^num_processes:.*", f"num_processes: {gpus}", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s+gradient_accumulation_steps:).*", rf"\1 {accumulation}", text, flags=re.MULTILINE)
    has_count = re.search(r"^num_processes:", text, re.MULTILINE)
    return text if has_count else f"{text.rstrip()}\nnum_processes: {gpus}\n"


def file_text(gpus: int, accumulation: int, *, kind: str = "DEEPSPEED", precision: str = "bf16") -> str:
    """A file that starts so many processes on one machine; `precision` is a job's, by default bf16."""
    mixed = "'no'" if precision == "fp32" else "bf16"
    lines = ["compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}"]
    if kind == "DEEPSPEED":
        lines += ["deepspeed_config:", f"  gradient_accumulation_steps: {accumulation}", "  zero_stage: 3"]
    return "\n".join([*lines, f"mixed_precision: {mixed}", "num_machines: 1", f"num_processes: {gpus}", ""])
