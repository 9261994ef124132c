"""DeepSpeed as a `System`: planner recognises its JSON, reads it, and writes it with other batch numbers."""

from collections.abc import Sequence

from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.deepspeed import read as deepspeed
from planner.recipes.deepspeed.keys import RULES
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import guessed_precision
from planner.recipes.source import RecipeSource
from planner.recipes.system import BatchSplit, System


def detect(found: RecipeSource) -> bool:
    """Whether the file has the keys of a DeepSpeed file."""
    return deepspeed.is_deepspeed(found.tree)


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a DeepSpeed file, with the overrides applied.

    Raises:
        RecipeError: a value is wrong or missing.
    """
    entries = flat(found.tree, found.source)
    overrides(found.arguments, entries)
    keys = KeyReader(source=found.source, entries=entries, is_for_job=options.is_for_job, rules=RULES)
    recipe = deepspeed.read(keys, options)
    keys.raise_mistakes()
    return recipe


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The user's DeepSpeed file with other batch numbers, or a new one, with a note on what the script must not do."""
    del arguments
    recipe, sizes = split.recipe, (split.gpus, split.micro, split.accumulation)
    command = f"deepspeed --num_gpus {split.gpus} YOUR_SCRIPT --deepspeed ds_config.json"
    must = "the script must not set other batch sizes"
    if split.is_own:
        file = deepspeed.with_sizes(mapping_of(text_of(recipe.source), recipe.source), *sizes)
        return Rewrite(command=command, file=file, notes=(must,))
    file = deepspeed.file_text(*sizes, precision=recipe.precision)
    return Rewrite(command=command, file=file, notes=(must, *guessed_precision(recipe)))


SYSTEM = System(
    name="deepspeed",
    title="DeepSpeed",
    detect=detect,
    read=read,
    render=render,
    listed="DeepSpeed",
    part="'s batch sizes",
    marks=("train_batch_size",),
    rules=RULES,
    versions="DeepSpeed's configuration file",
)
