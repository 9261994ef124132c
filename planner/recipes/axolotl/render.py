"""Writes a batch as options of `axolotl train`, and a job as axolotl's YAML."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from planner.base.disk import is_file
from planner.errors import NoExactSplit
from planner.recipes.axolotl.keys import RULES
from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.scalars import FALSE_TEXTS
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.batching import TrainerFacts

_SIZES = ("micro_batch_size", "gradient_accumulation_steps")


def why_not(recipe: Recipe, gpus: int) -> str:
    """Why axolotl takes no split of the recipe's batch at a count, with what to do. Empty if it may take one."""
    if text := writing.why_not(recipe, gpus):
        return text
    tree, facts = _tree(recipe), recipe.foreign
    assert isinstance(facts, TrainerFacts)
    given = {_name(each) for each in recipe.arguments}
    if tree.get("batch_size") or "batch_size" in given:
        return "axolotl refuses batch_size beside gradient_accumulation_steps, so remove it from the recipe"
    if tree.get("strict") is True and (lacks := [name for name in _SIZES if name not in tree]):
        return (
            "with strict: true axolotl drops options for keys that the file does not have. Write "
            f"{' and '.join(lacks)} into {recipe.config or recipe.source}"
        )
    each, n = recipe.global_batch // gpus, facts.num_generations
    if facts.method == "grpo" and n and gpus > 1 and (made := facts.generation_batch or each) < n * gpus:
        return (
            f"axolotl refuses trl.num_generations {n} there: micro_batch_size x gradient_accumulation_steps is {made}, "
            f"and it wants {n} x {gpus}. Use fewer GPUs"
        )
    return ""


def _tree(recipe: Recipe) -> Mapping[str, Any]:
    """The keys of the recipe's file, none if it is not here."""
    path = recipe.config or recipe.source
    return mapping_of(text_of(path), path) if is_file(path) else {}


def render_command(rendering: Rendering) -> None:
    """Lists all values of a job: planner writes the batch alone."""
    rendering.leave("model data objective train eval tracking", f"{writing.YOUR_CONFIG} must set it")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options."""
    recipe = split.recipe
    micro, steps = writing.sizes(split)
    options = [f"--micro-batch-size {micro}", *([] if steps is None else [f"--gradient-accumulation-steps {steps}"])]
    launcher = writing.launcher_options(split)
    how = f"-- {launcher}" if launcher else f"--launcher torchrun -- --nproc_per_node {split.gpus}"
    config = (recipe.config or recipe.source) if split.is_own else writing.YOUR_CONFIG
    words = [f"{split.assignments}axolotl train {config}", *_dashed(arguments), *options, how]
    return Rewrite(command=" ".join(words), file=split.file, notes=writing.notes(split))


def _name(argument: str) -> str:
    return argument.partition("=")[0].lstrip("-+").replace("-", "_")


def _dashed(arguments: Sequence[str]) -> list[str]:
    """The recipe's options without its sizes, as `axolotl train` takes them: `--lora-r 8`, `--no-sample-packing`.

    Those of no key are left out, because axolotl ignores them.
    """
    made: list[str] = []
    index = 0
    while index < len(arguments):
        word, index = arguments[index], index + 1
        name, (_, sign, value) = _name(word), word.partition("=")
        if not sign and index < len(arguments) and not arguments[index].startswith("--"):
            value, index = arguments[index], index + 1
        row = RULES.row(name)
        if row is None or name in _SIZES:
            continue
        option = name.replace("_", "-")
        if row.value == "truth" and row.name == name:
            made.append(f"--no-{option}" if value.strip("'").lower() in FALSE_TEXTS else f"--{option}")
        elif "." in name and name.count(".") > 1:
            raise NoExactSplit(f"axolotl train takes no option --{option}. Write the key into the recipe's file")
        else:
            made.append(f"--{option} {value}" if value else f"--{option} {shlex.quote(value)}")
    return made
