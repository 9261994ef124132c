"""Writes a batch as a DeepSpeed file: the user's own with other sizes, or a new one."""

import json
from collections.abc import Sequence
from typing import Any

from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.deepspeed.keys import BATCH, MICRO, STEPS
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import guessed_precision
from planner.recipes.system import BatchSplit


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The user's DeepSpeed file with other batch numbers, or a new one, with a note on what the script must not do."""
    del arguments
    recipe, sizes = split.recipe, (split.gpus, split.micro, split.accumulation)
    command = f"deepspeed --num_gpus {split.gpus} YOUR_SCRIPT --deepspeed ds_config.json"
    must = "the script must not set other batch sizes"
    if split.is_own:
        file = with_sizes(mapping_of(text_of(recipe.source), recipe.source), *sizes)
        return Rewrite(command=command, file=file, notes=(must,))
    file = file_text(*sizes, precision=recipe.precision)
    return Rewrite(command=command, file=file, notes=(must, *guessed_precision(recipe)))


def file_text(gpus: int, micro: int, accumulation: int, *, precision: str = "bf16") -> str:
    """A new DeepSpeed file with all three batch numbers. `precision` is a job's: bf16 or fp32."""
    rest = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": precision != "fp32"}}
    return with_sizes(rest, gpus, micro, accumulation)


def with_sizes(tree: dict[str, Any], gpus: int, micro: int, accumulation: int) -> str:
    """The user's DeepSpeed file with the three batch numbers replaced."""
    sizes = {BATCH: gpus * micro * accumulation, MICRO: micro, STEPS: accumulation}
    return json.dumps({**sizes, **tree, **sizes}, indent=2) + "\n"
