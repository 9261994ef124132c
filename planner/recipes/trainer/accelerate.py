"""Reads and writes accelerate's configuration files, which say how many processes start, and how."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.base.disk import is_file
from planner.files.messages import cut, show
from planner.recipes.config_reader import RepeatedKey, beside, mapping_of, recipe_error, text_of
from planner.recipes.engine import refuse_values
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import scalar
from planner.recipes.trainer.keys import DEEPSPEED
from planner.recipes.trainer.launch_keys import ACCELERATE_FILE

_STEPS = "gradient_accumulation_steps"
_CLIP = "deepspeed_config.gradient_clipping"
# The keys that accelerate refuses beside a DeepSpeed file (DeepSpeedPlugin._deepspeed_config_checks).
_BESIDE = (
    *(f"deepspeed_config.{name}" for name in (
        _STEPS, "gradient_clipping", "zero_stage", "offload_optimizer_device", "offload_param_device",
        "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
    )),
    "mixed_precision",
)  # fmt: skip
NOTHING_TO_SHARD = (
    "parallelism_config_dp_shard_size: found 1 with FSDP, which then has no GPUs to shard over, and accelerate refuses "
    "it. Write the number of GPUs, or remove parallelism_config"
)
_SAGEMAKER = "AMAZON_SAGEMAKER"
_SHARING = ("tp_size", "cp_size", "sp_size")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedSizes:
    """The batch sizes in DeepSpeed's file. None if `auto` or missing. transformers refuses others than its own."""

    batch: int | None = None
    micro: int | None = None
    accumulation: int | None = None
    lacks_steps: bool = False
    """whether the recipe's own DeepSpeed file does not have gradient_accumulation_steps"""
    source: str = ""
    """the file or option that has them, for messages"""

    def other(self, gpus: int, micro: int, accumulation: int) -> tuple[str, int, int] | None:
        """The first size that differs from the Trainer's at a GPU count: its name, DeepSpeed's and the Trainer's.

        transformers refuses to start with one. None if it starts.
        """
        return next(iter(self._others(gpus, micro, accumulation)), None)

    def notes(self, gpus: int, micro: int, accumulation: int) -> list[str]:
        """What the user must change in DeepSpeed's file for other sizes, a text for each."""
        others = self._others(gpus, micro, accumulation)
        missing = self.lacks_steps and accumulation > 1
        return [
            *(f"{name} is {its} in {self.source}: write {ours} there" for name, its, ours in others),
            *([f"{_STEPS} is not in {self.source}: write auto there"] if missing else []),
        ]

    def _others(self, gpus: int, micro: int, accumulation: int) -> list[tuple[str, int, int]]:
        rows = (
            (_STEPS, self.accumulation, accumulation),
            ("train_micro_batch_size_per_gpu", self.micro, micro),
            ("train_batch_size", self.batch, gpus * micro * accumulation),
        )
        return [(name, its, ours) for name, its, ours in rows if its is not None and its != ours]


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """The launcher's settings on which batches or gradients depend."""

    num_processes: int | None
    """on all machines together"""
    kind: str = ""
    """FSDP, DEEPSPEED, MULTI_GPU, NO, or empty if unknown"""
    deepspeed: DeepSpeedSizes | None = None
    """the batch sizes in DeepSpeed's section, which count if `kind` is DEEPSPEED"""
    mixed_precision: str = ""
    """bf16, fp16, no, or empty if unknown"""
    clip: float | None = None
    """DeepSpeed's gradient_clipping, None if `auto` or missing"""
    beside_deepspeed: tuple[str, ...] = ()
    """keys of the file that accelerate refuses beside a DeepSpeed file"""
    machines: int = 1
    mesh: int | None = None
    """the number of processes that parallelism_config needs, None if any"""
    unread: tuple[str, ...] = ()
    """files that the launcher reads and that are not on this machine"""
    source: str = ""
    """the file or option that says so, for messages"""
    counted_by: str = ""
    """what says the number of processes, if it is not num_processes of `source`"""
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
    keys = KeyReader(source=path, entries=flat(tree, path), fix="{}: VALUE", rules=ACCELERATE_FILE)
    if not is_accelerate(tree):
        keys.wrong("found no keys of an accelerate file (distributed_type, num_processes). Write the path of one")
        keys.raise_mistakes()
    _refuse_values(keys)
    written = frozenset(keys.entries)
    more, unread = _deepspeed_file(keys, path)
    keys.entries = {**keys.entries, **more}
    kind = str(keys.value("distributed_type", "")).upper()
    launch = LaunchSettings(
        num_processes=keys.whole("num_processes") if keys.has("num_processes") else None,
        kind="NO" if kind == "FALSE" else kind,
        deepspeed=_sizes_of(keys, path, is_file=bool(more)),
        mixed_precision=_precision_of(keys.value("mixed_precision")),
        clip=None if keys.value(_CLIP) in (None, "auto") else keys.number(_CLIP),
        beside_deepspeed=tuple(key for key in _BESIDE if key in written and keys.has(key)),
        machines=keys.whole("num_machines", 1),
        mesh=_mesh(keys),
        unread=unread,
        source=path,
        repeats=tuple(f"{path}: {each.note}" for each in repeats),
    )
    _refuse_unknown_batches(keys, launch)
    keys.raise_mistakes()
    return launch


def _refuse_values(keys: KeyReader) -> None:
    """Notes values that accelerate refuses (ClusterConfig). It takes mixed_precision in any case."""
    precision = keys.entries.get("mixed_precision")
    if precision and isinstance(precision.value, str):
        keys.entries = {**keys.entries, "mixed_precision": replace(precision, value=precision.value.lower())}
    clip = keys.entries.get(_CLIP)
    if clip and isinstance(clip.value, str):  # it becomes a variable, which is text in any case
        keys.entries = {**keys.entries, _CLIP: replace(clip, value=scalar(clip.value.lower()))}
    refuse_values(keys, "accelerate")
    if "distributed_type" not in keys.entries:
        keys.wrong(
            "distributed_type: found nothing, and accelerate refuses the file. Write MULTI_GPU, FSDP or DEEPSPEED"
        )


def _refuse_unknown_batches(keys: KeyReader, launch: LaunchSettings) -> None:
    """Notes what leaves the batch or the number of processes unknown."""
    for size in _SHARING:
        name = f"parallelism_config.parallelism_config_{size}"
        if keys.whole(name, 1) > 1:
            keys.refuse(name, "Those GPUs share a micro-batch: remove it, and write the count of data-parallel GPUs")
    if launch.num_processes and launch.num_processes % launch.machines:
        keys.wrong(
            f"num_processes: {launch.num_processes} is no multiple of num_machines {launch.machines}. Correct one"
        )
    if launch.kind == "NO" and (launch.num_processes or 1) > 1:
        keys.wrong(
            f"distributed_type: found NO, with which accelerate starts one process, but num_processes is "
            f"{launch.num_processes}. Write MULTI_GPU, FSDP or DEEPSPEED, or num_processes 1"
        )
    name = "parallelism_config.parallelism_config_dp_shard_size"
    is_used = any(key.startswith("parallelism_config.") for key in keys.entries)
    if launch.kind == "FSDP" and is_used and keys.whole(name, 1) == 1:
        keys.wrong(NOTHING_TO_SHARD)
    if launch.kind == "DEEPSPEED" and keys.has("deepspeed_config.deepspeed_config_file") and launch.beside_deepspeed:
        keys.wrong(f"{launch.beside_deepspeed[0]}: accelerate refuses it beside deepspeed_config_file. Remove it")
    if launch.kind == "MEGATRON_LM":
        keys.refuse("distributed_type", "Megatron-LM has batch sizes of its own: write FSDP or DEEPSPEED")
    if str(keys.value("compute_environment", "")).upper() == _SAGEMAKER:
        keys.refuse("compute_environment", "planner does not know how many processes SageMaker starts")


def _mesh(keys: KeyReader) -> int | None:
    """The product of the data-parallel sizes. accelerate refuses another number of processes, if one is above 1."""
    prefix = "parallelism_config.parallelism_config_"
    sizes = [keys.whole(f"{prefix}{name}", 1) for name in ("dp_replicate_size", "dp_shard_size")]
    return sizes[0] * sizes[1] if max(sizes) > 1 else None


def sizes_in(keys: KeyReader, prefix: str = "") -> DeepSpeedSizes:
    """The sizes in DeepSpeed's keys, behind a prefix. Notes mistakes in `keys`."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", _STEPS)
    batch, micro, steps = (
        None if keys.value(f"{prefix}{name}", "auto") == "auto" else keys.whole(f"{prefix}{name}") for name in names
    )
    return DeepSpeedSizes(batch=batch, micro=micro, accumulation=steps)


def _sizes_of(keys: KeyReader, path: str, *, is_file: bool) -> DeepSpeedSizes | None:
    """The sizes in an accelerate file. accelerate takes 1 step if DeepSpeed's own file does not name them."""
    if not any(key.startswith("deepspeed_config.") for key in keys.entries):
        return None
    sizes = sizes_in(keys, "deepspeed_config.")
    if is_file and not keys.has(f"deepspeed_config.{_STEPS}"):
        sizes = replace(sizes, accumulation=1)
    return replace(sizes, source=path)


def _deepspeed_file(keys: KeyReader, path: str) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """The keys of the DeepSpeed file that an accelerate file names. They replace its own.

    The name of the file is returned instead if it is not on this machine.
    """
    name = keys.value("deepspeed_config.deepspeed_config_file")
    if not isinstance(name, str) or name == "none":
        return {}, ()
    file = next((str(place) for place in (Path(name), Path(path).parent / name) if is_file(place)), None)
    return (deepspeed_entries(file), ()) if file else ({}, (cut(name),))


def deepspeed_entries(file: str) -> dict[str, Entry]:
    """The keys of a DeepSpeed file, as an accelerate file has them.

    Raises:
        RecipeError: the file cannot be read, or DeepSpeed would choose other batch sizes.
    """
    entries = flat(mapping_of(text_of(file), file), file)
    for row in DEEPSPEED:
        value = entries[row.name].value if row.name in entries else None
        if row.effect and row.effect.planner == "refuses" and value not in row.effect.plain:
            raise recipe_error(file, f"{row.name}: found {show(value)}. {row.effect.how}")
    return {f"deepspeed_config.{name}": entry for name, entry in entries.items()}


def _precision_of(value: Any) -> str:
    """`mixed_precision` as text. YAML reads a bare `no` as false."""
    return "no" if value is False else str(value or "").lower()


def local_file(recipe: Recipe) -> str:
    """The path of the recipe's accelerate file on this machine, empty if there is none."""
    path = beside(recipe.source, recipe.launch_file) if recipe.launch_file else ""
    return path if path and is_file(path) else ""


def launch_notes(path: str, gpus: int) -> list[str]:
    """Notes on an accelerate file for several machines, or for another number of processes.

    Its `num_processes` counts all machines together.
    """
    launch = read_launch(path)
    mesh = f"parallelism_config is for {launch.mesh} processes in {path}: write sizes for {gpus} there"
    return [*([] if launch.mesh in {None, gpus} else [mesh]), *_machine_notes(launch.machines, path, gpus)]


def _machine_notes(machines: int, path: str, gpus: int) -> list[str]:
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
    if gpus > 1:  # NO starts one process
        text = re.sub(
            r"^distributed_type:\s*['\"]?NO['\"]?[ \t]*$", "distributed_type: MULTI_GPU", text, flags=re.MULTILINE
        )
    has_count = re.search(r"^num_processes:", text, re.MULTILINE)
    return text if has_count else f"{text.rstrip()}\nnum_processes: {gpus}\n"


def file_text(gpus: int, accumulation: int, *, kind: str = "DEEPSPEED", precision: str = "bf16") -> str:
    """A new accelerate file for one machine. `precision` is a job's: bf16 or fp32."""
    mixed = "'no'" if precision == "fp32" else "bf16"
    lines = ["compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}"]
    if kind == "DEEPSPEED":
        lines += ["deepspeed_config:", f"  gradient_accumulation_steps: {accumulation}", "  zero_stage: 3"]
    return "\n".join([*lines, f"mixed_precision: {mixed}", "num_machines: 1", f"num_processes: {gpus}", ""])
