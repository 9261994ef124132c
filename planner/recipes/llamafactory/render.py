"""Writes a batch as options of `llamafactory-cli train`, and a job as all of them."""

from collections.abc import Sequence

from planner.errors import NoExactSplit
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.keys import MICRO, STEPS


def render_command(rendering: Rendering) -> None:
    """Lists all values of a job: planner writes the batch alone."""
    rendering.leave("model data objective train eval tracking", f"{writing.YOUR_CONFIG} must set it")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options.

    Raises:
        NoExactSplit: a setting of the recipe takes no such split.
    """
    recipe = split.recipe
    micro, steps = writing.sizes(split)
    if split.accumulation > 1 and any("layerwise" in limit.text for limit in _limits(split)):
        raise NoExactSplit(
            f"a layer-wise optimizer takes no accumulation, and {split.arithmetic} has {split.accumulation} steps of "
            "it. Write galore_layerwise=false (or apollo_layerwise=false) behind the recipe, or use `planner run`"
        )
    its = {MICRO: micro, STEPS: steps}
    is_file = not recipe.script
    config = (recipe.source if is_file else recipe.config) if split.is_own else "" if arguments else writing.YOUR_CONFIG
    sign = "{}={}" if config else "--{} {}"
    options = [sign.format(name, value) for name, value in its.items() if value is not None]
    if launcher := writing.launcher_options(split):
        program = f"accelerate launch {launcher} src/train.py"
    else:
        program = f"{_variables(split)} llamafactory-cli train"
    words = [f"{split.assignments}{program}", *([config] if config else []), *arguments, *options]
    return Rewrite(command=" ".join(words), file=split.file, notes=writing.notes(split))


def _limits(split: BatchSplit) -> Sequence[Limit]:
    facts = split.recipe.foreign
    return facts.limits if split.is_own and isinstance(facts, TrainerFacts) else ()


def _variables(split: BatchSplit) -> str:
    """The variables that start as many processes. One that is plain has no torch.distributed, which some keys want."""
    if split.gpus == 1 and any(limit.most == 1 for limit in _limits(split)):
        return "CUDA_VISIBLE_DEVICES=0"
    return f"FORCE_TORCHRUN=1 NPROC_PER_NODE={split.gpus}"
