"""Writes a batch for systems on transformers' Trainer: its sizes, its launcher, and why some recipes have no split."""

import shlex

from planner.base.disk import is_file
from planner.errors import NoExactSplit
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import for_shell, has_shell, shell_names
from planner.recipes.system import BatchSplit
from planner.recipes.trainer.accelerate import launch_notes, local_file, read_launch
from planner.recipes.trainer.batching import TrainerFacts

YOUR_CONFIG = "YOUR_CONFIG.yaml"


def why_not(recipe: Recipe, gpus: int) -> str:
    """Why no split of the recipe's batch is one of its system's at a count, with what to do. Empty if one may be."""
    facts = recipe.foreign
    assert isinstance(facts, TrainerFacts)
    keep = "Keep the recipe's own command and count, or make a job of it (`planner convert`) and use `planner run`"
    if facts.sharing > 1:
        text = f"{facts.sharing} GPUs share the rows of a micro-batch in this recipe, and planner writes only"
        return f"{text} GPUs x micro-batch x accumulation steps. {keep}"
    if limit := next((each for each in facts.limits if each.multiple_of > 1 and each.refuses(gpus)), None):
        return f"{limit.text}. Write a multiple of {limit.multiple_of} behind convert --at"
    if facts.mesh not in {None, gpus}:
        return (
            f"the recipe's parallel sizes are for {facts.mesh} processes. Write sizes for {gpus} in the recipe, and "
            f"behind convert --gpus the count that its batch is of. Or write convert --at {facts.mesh}"
        )
    if facts.workers is not None and facts.workers != gpus:
        how = "its command starts 1 process by python" if facts.is_alone else f"Ray starts {facts.workers} workers"
        rest = "" if facts.is_alone else " without Ray"
        return (
            f"{how} whatever the number of GPUs. Give the recipe's file{rest} instead, with --gpus {facts.workers} for "
            "the batch that it has now"
        )
    return ""


def config_of(split: BatchSplit) -> str:
    """The file of the recipe of the target system, for a shell. Empty if its own command names none."""
    path = split.recipe.config if split.recipe.script else split.recipe.source
    if not path or not has_shell(path):
        return shlex.quote(path) if path else ""
    return shlex.quote(path) if is_file(path) else for_shell(path)


def sizes(split: BatchSplit) -> tuple[int, int | None]:
    """The micro-batch and the accumulation steps as the recipe's keys take them. None if accelerator_config has them.

    Raises:
        NoExactSplit: accelerator_config has another number of steps.
    """
    facts = split.recipe.foreign
    if not split.is_own or not isinstance(facts, TrainerFacts):
        return split.micro, split.accumulation
    micro = split.micro * split.gpus if facts.splits_batches else split.micro
    if not facts.num_steps:
        return micro, split.accumulation
    if split.accumulation != facts.accumulation:
        raise NoExactSplit(
            f"num_steps in accelerator_config is {facts.accumulation}, and {split.arithmetic} needs "
            f"{split.accumulation}. Remove num_steps from the recipe, and write gradient_accumulation_steps"
        )
    return micro, None


def launcher_options(split: BatchSplit) -> str:
    """The options of `accelerate launch` with the recipe's accelerate file, empty if it has none."""
    recipe = split.recipe
    if not split.is_own or not recipe.launch_file:
        return ""
    path = local_file(recipe)
    multi = "--multi_gpu " if path and split.gpus > 1 and read_launch(path).kind == "NO" else ""
    return f"{multi}--config_file {recipe.launch_file} --num_processes {split.gpus}"


def notes(split: BatchSplit) -> tuple[str, ...]:
    """What the user must change or check in files that the command of the recipe's own system reads."""
    recipe, facts = split.recipe, split.recipe.foreign
    if not split.is_own or not isinstance(facts, TrainerFacts):
        return ()
    made = facts.deepspeed.notes(split.gpus, split.micro, split.accumulation) if facts.deepspeed else []
    made += [
        f"planner did not read {name} (not on this machine): its batch sizes must be auto" for name in facts.unread
    ]
    if path := local_file(recipe):
        made += launch_notes(path, split.gpus)
    return (*made, *unset(split))


def unset(split: BatchSplit) -> tuple[str, ...]:
    """A note on the shell variables without a value in the recipe's own options, which the command keeps."""
    names = shell_names(" ".join(split.recipe.arguments)) if split.is_own else []
    if not names:
        return ()
    shown, options = ", ".join(f"${name}" for name in names), " ".join(f"--env {name}=VALUE" for name in names)
    return (f"{shown}: found no value. Set it before you run the command, or write {options}",)
