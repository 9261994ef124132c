"""What torchtune 0.6.1 trains per optimizer step, computed from a recipe's name and a configuration as its source does.

Written from the source of torchtune 0.6.1 and not from planner's reader. Each rule names the function and the file that
it was read in. `torchtune/execute.py` compares it with torchtune's own code.

The recipe decides, not the configuration: `tune run` takes any recipe with any configuration.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

FOLDER = Path(__file__).parent / "torchtune"
# Recipe -> what its samples are. torchtune/_recipe_registry.py has the names and which of them know torchrun.
UNITS = {
    "full_finetune_single_device": "rows",
    "full_finetune_distributed": "rows",
    "lora_finetune_single_device": "rows",
    "lora_finetune_distributed": "rows",
    "dev/lora_finetune_distributed_multi_dataset": "rows",
    "dev/early_exit_finetune_distributed": "rows",
    "qat_distributed": "rows",
    "qat_lora_finetune_distributed": "rows",
    "knowledge_distillation_single_device": "rows",
    "knowledge_distillation_distributed": "rows",
    "lora_dpo_single_device": "pairs",
    "lora_dpo_distributed": "pairs",
    "full_dpo_distributed": "pairs",
    "ppo_full_finetune_single_device": "rollouts",
}
# Recipes whose optimizer may run inside the backward pass: `optimizer_in_bwd` in their __init__. Others ignore the key.
IN_BACKWARD = {
    "full_finetune_single_device",
    "full_finetune_distributed",
    "full_dpo_distributed",
    "qat_distributed",
    "dev/early_exit_finetune_distributed",
}
# Keys that the __init__ and setup of all recipes read without a default.
NEEDED = (
    "batch_size",
    "gradient_accumulation_steps",
    "dtype",
    "device",
    "output_dir",
    "seed",
    "resume_from_checkpoint",
)


class Refused(Exception):
    """torchtune stops before the first step. The message says why, and where in its source."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    samples: int
    """per optimizer step, in `unit`, over all processes"""
    micro: int
    accumulation: int
    replicas: int
    """data-parallel replicas"""
    unit: str
    """rows, packed rows, pairs or rollouts"""


def load(path, overrides=()):
    """The configuration of a file with the overrides of a command line: config/_utils.py, _merge_yaml_and_cli_args."""
    config = OmegaConf.to_container(OmegaConf.load(path))
    words = []
    for word in overrides:
        if word.startswith("~"):
            _remove(config, word[1:].split("=")[0].split("."))
            continue
        key, value = word.split("=")
        if isinstance(config.get(key), dict) and "_component_" in config[key]:
            key += "._component_"
        value = {"None": "!!null"}.get(value, value)
        words.append(f"{key}={'!!str ' if 'max_filename' in key else ''}{value}")
    merged = OmegaConf.merge(OmegaConf.create(config), OmegaConf.from_dotlist(words))
    return OmegaConf.to_container(merged)


def _remove(config, path):
    if len(path) > 1:
        _remove(config[path[0]], path[1:])
        if config[path[0]]:
            return
    del config[path[0]]


@cache
def distributed_recipes():
    """The recipes that support torchrun: torchtune/_recipe_registry.py."""
    with (FOLDER / "registry.csv").open() as file:
        return {row["recipe"] for row in csv.DictReader(file) if row["distributed"] == "True"}


def batch_at(recipe, config, processes=None):
    """The Batch of a recipe with a configuration.

    `processes` is the count that torchrun's options of `tune run` start, over all nodes. None is a command without such
    options, which runs in one process that is not distributed.

    Raises:
        Refused: torchtune refuses the recipe or the configuration at this size.
    """
    if recipe not in UNITS:
        raise Refused(f"{recipe} does not train, or is no recipe of the registry")
    _refuse_launch(recipe, processes)
    _refuse_settings(recipe, config)
    if recipe == "ppo_full_finetune_single_device":
        return _ppo(config)
    replicas = _replicas(recipe, config, processes or 1)
    micro, steps = config["batch_size"], config["gradient_accumulation_steps"]
    # Every recipe's train: the optimizer steps if (idx + 1) % gradient_accumulation_steps == 0
    return Batch(
        samples=micro * steps * replicas, micro=micro, accumulation=steps, replicas=replicas, unit=_unit(recipe, config)
    )


def _unit(recipe, config):
    """_setup_data of the recipes: `packed` of a data set. ConcatDataset refuses a mix of packed and unpacked ones."""
    datasets = config.get("dataset") or {}
    first = datasets[0] if isinstance(datasets, list) else datasets
    return "packed rows" if UNITS[recipe] == "rows" and first.get("packed") else UNITS[recipe]


def _refuse_launch(recipe, processes):
    """_cli/run.py, Run._run_cmd. And recipe_main of each distributed recipe, by training/_distributed.py."""
    if processes is not None and recipe not in distributed_recipes():
        raise Refused(f"{recipe} does not support distributed training")
    if processes is None and recipe in distributed_recipes():
        raise Refused(f"{recipe} must be run with --nproc_per_node")


def _refuse_settings(recipe, config):
    """__init__ of the recipes."""
    shuffle = () if "multi_dataset" in recipe else ("shuffle",)
    missing = [key for key in (*NEEDED, *shuffle) if key not in config]
    _refuse((missing, f"no {missing}"), (config.get("dtype") == "fp16", "dtype fp16"))
    for key in ("batch_size", "gradient_accumulation_steps"):  # nothing converts them
        size = config[key]
        _refuse((not isinstance(size, int) or isinstance(size, bool) or size < 1, f"{key} {size!r} is no count"))
    steps = config["gradient_accumulation_steps"]
    in_backward = recipe in IN_BACKWARD and config.get("optimizer_in_bwd")
    checked = recipe not in {"ppo_full_finetune_single_device", "knowledge_distillation_distributed"}
    offloads = checked and config.get("enable_activation_offloading")
    _refuse(
        (recipe == "full_finetune_single_device" and "optimizer_in_bwd" not in config, "no optimizer_in_bwd"),
        (in_backward and config.get("clip_grad_norm") is not None, "optimizer_in_bwd with clip_grad_norm"),
        (in_backward and steps > 1, "optimizer_in_bwd with gradient accumulation"),
        (offloads and not config.get("enable_activation_checkpointing"), "offloading without checkpointing"),
        (recipe.startswith("qat") and config.get("compile"), "compile with QAT"),
    )


def _replicas(recipe, config, processes):
    """full_finetune_distributed.py, __init__: the only recipe with tensor parallelism. Others ignore the key."""
    tensor = config.get("tensor_parallel_dim", 1) if recipe == "full_finetune_distributed" else 1
    fused = (config.get("optimizer") or {}).get("fused")
    _refuse(
        (tensor > 1 and config.get("tensor_parallel_plan") is None, "tensor_parallel_dim without a plan"),
        (processes % tensor, f"{processes} processes do not divide by tensor_parallel_dim {tensor}"),
        (tensor > 1 and fused, "tensor parallelism with a fused optimizer"),
    )
    return processes // tensor


def samples_of_steps(config, rows, replicas=1):
    """The samples of each optimizer step of a run over `rows` rows, for all recipes with a data loader of SFT or DPO.

    Their train counts micro-batches anew in each epoch, but sets gradients to zero after a step only. So micro-batches
    that are left at an epoch's end are part of the next epoch's first step. The loader drops a last short micro-batch.
    (knowledge_distillation_distributed does not drop it. This is not for that recipe.)
    """
    micro, steps, limit = (
        config.get(key) for key in ("batch_size", "gradient_accumulation_steps", "max_steps_per_epoch")
    )
    batches = -(-rows // replicas) // micro  # DistributedSampler repeats rows until all replicas have as many
    told, waiting = [], 0
    for _ in range(config["epochs"]):
        for at in range(1, batches + 1):
            waiting += micro * replicas
            if at % steps == 0:
                told.append(waiting)
                waiting = 0
            if at // steps == limit:
                break
    return told


def _ppo(config):
    """ppo_full_finetune_single_device.py, _setup_training_parameters: batch_size counts the rollouts of a round."""
    rollouts, forward, size, steps = (
        config[key] for key in ("batch_size", "forward_batch_size", "ppo_batch_size", "gradient_accumulation_steps")
    )
    _refuse(
        (rollouts % forward, f"batch_size {rollouts} does not divide by forward_batch_size {forward}"),
        (rollouts % size, f"batch_size {rollouts} does not divide by ppo_batch_size {size}"),
        (size % steps, f"ppo_batch_size {size} does not divide by gradient_accumulation_steps {steps}"),
        (steps > 1 and config.get("optimizer_in_bwd"), "optimizer_in_bwd with gradient accumulation"),
        (config["num_steps"] < rollouts, "num_steps below batch_size"),
    )
    return Batch(samples=size, micro=size // steps, accumulation=steps, replicas=1, unit="rollouts")


def _refuse(*cases):
    for holds, reason in cases:
        if holds:
            raise Refused(reason)
