"""Writes the command that trains a recipe's exact batch in another system at a GPU count, or says why none does."""

from dataclasses import replace

from planner.errors import NoExactSplit
from planner.job import Job
from planner.recipes.job_text import job_of
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering, leave_padding
from planner.recipes.scalars import for_shell
from planner.recipes.split import accumulation_for, nearest_counts, nearest_multiple, percent
from planner.recipes.system import BatchSplit, System
from planner.recipes.systems import named

_BATCH_KEYS = (
    "batch_size",
    "eval_batch_size",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "trainer",
)


def rewrite(recipe: Recipe, target: str, gpus: int) -> Rewrite:
    """The command with which `target` trains exactly this batch on `gpus` GPUs.

    Of all splits B = W x A x m it takes the one with the fewest accumulation steps A whose micro-batch m one GPU is
    known to hold, with m of at least 2 for KTO. Accumulation costs time, and under FSDP a full gradient on each GPU.

    Raises:
        NoExactSplit: there is no such split, or `target` lacks the objective. The message names the nearest counts and
            the nearest batch.
        UserError: there is no such target.
        JobError: the recipe makes no valid job, which another system's options are written from.
    """
    system = named(target)
    assert system.render is not None
    job = job_of(recipe)[0] if needs_job(recipe, target) else None
    if job is not None and not job.is_own and job.objective.kind not in (system.methods or (job.objective.kind,)):
        raise NoExactSplit(
            f"{system.title} does not train {job.objective.kind} (it trains {', '.join(system.methods)}). "
            "Use another --to, or train the job with `planner run`"
        )
    if job is None and system.why_not and (text := system.why_not(recipe, gpus)):
        raise NoExactSplit(f"{system.title} cannot train a batch of {recipe.global_batch} on {gpus} GPUs: {text}")
    split = _split(recipe, system, gpus)
    if job is None:
        split = replace(split, environment=recipe.environment)
        arguments, unsaid = _own_arguments(split), []
    else:
        rendering = _rendering_of(recipe, job, system)
        split = replace(split, environment=rendering.environment, file=rendering.file)
        arguments, unsaid = rendering.arguments, rendering.unsaid
    made = system.render(split, arguments)
    notes = list(made.notes)
    if system.render_command and recipe.micro and split.micro < recipe.micro:
        notes.append(f"the micro-batch is {split.micro} instead of {recipe.micro}")
    return replace(made, arithmetic=split.arithmetic, notes=tuple(notes), unsaid=(*unsaid, *made.unsaid))


def needs_job(recipe: Recipe, target: str) -> bool:
    """Whether the target needs the whole job and not only batch sizes, because it cannot read the recipe.

    Raises:
        UserError: there is no such target.
    """
    system = named(target)
    return recipe.foreign is None or (system.render_command is not None and not _is_its_own(recipe, system))


def _is_its_own(recipe: Recipe, system: System) -> bool:
    """Whether the target system reads this recipe as planner would write it."""
    return recipe.system == system.name and not recipe.is_older


def _rendering_of(recipe: Recipe, job: Job, system: System) -> Rendering:
    """The job in the target's options, and texts on the values that those options cannot express."""
    rendering = Rendering(job=job)
    rendering.write("batch.global")
    if system.render_command is None:
        rendering.write("" if job.is_own else "train.precision")
        leave_padding(rendering)
        rendering.close("YOUR_SCRIPT must set it, because this file cannot")
        return rendering
    if job.is_own:
        rendering.remark("model, data, loss and length: the command sets only the batch")
        rendering.unsaid += recipe.draft.to_do
        rendering.leave("tracking", "the command sets only the batch")
    else:
        system.render_command(rendering)
        # First weights, a chat template or rows that the job does not name yet, and what the job has otherwise.
        rendering.unsaid += [each for each in recipe.draft.to_do if each.is_of_model]
        for note in recipe.draft.dropped:
            if note.is_trained:
                rendering.remark(f"{note.key} of the recipe: {note.text}")
    leave_padding(rendering)
    rendering.close(f"{system.title} has no option for it")
    return rendering


def _own_arguments(split: BatchSplit) -> list[str]:
    """The arguments of the recipe's own command, without batch sizes. Empty if the target is another system."""
    kept, skips = [], False
    for argument in split.recipe.arguments if split.is_own else ():
        key = argument.partition("=")[0].lstrip("+-").rpartition(".")[2]
        is_value = skips and not argument.startswith("-")
        skips = key in _BATCH_KEYS and argument.startswith("--") and "=" not in argument
        if key not in _BATCH_KEYS and not is_value:
            kept.append(for_shell(argument))
    return kept


def _split(recipe: Recipe, system: System, gpus: int) -> BatchSplit:
    accumulation = _accumulation(recipe, gpus, system)
    if accumulation is None:
        raise NoExactSplit(_refusal(recipe, system, gpus))
    return BatchSplit(
        recipe=recipe,
        gpus=gpus,
        micro=recipe.global_batch // gpus // accumulation,
        accumulation=accumulation,
        is_own=_is_its_own(recipe, system),
    )


def _accumulation(recipe: Recipe, gpus: int, system: System) -> int | None:
    takes_one = recipe.micro == 1 and _is_its_own(recipe, system)
    least = 2 if recipe.method.startswith("kto") and not takes_one else 1
    kept = recipe.accumulation
    share = recipe.global_batch // gpus
    if recipe.micro is None and not recipe.global_batch % (gpus * kept) and share // kept >= least:
        return kept

    def is_possible(micro: int, steps: int) -> bool:
        return micro >= least and (recipe.foreign is None or recipe.foreign.takes(gpus, micro, steps))

    return accumulation_for(recipe.global_batch, gpus, recipe.micro, is_possible)


def _refusal(recipe: Recipe, system: System, gpus: int) -> str:
    batch = recipe.global_batch
    below, above = nearest_counts(gpus, lambda count: _accumulation(recipe, count, system) is not None, batch)
    run = f"train it exactly with `planner run {recipe.source}`"
    if recipe.foreign:
        run = "convert the recipe without --to and train the job exactly with `planner run`"
    counts = " or ".join(f"{count}" for count in (below, above) if count)
    nearest = nearest_multiple(batch, gpus)
    where = f"Use {counts} GPU{'' if counts == '1' else 's'}" if counts else "Use another batch"
    if not batch % gpus and recipe.micro == 1 and recipe.method.startswith("kto"):
        return (
            f"planner writes no command of {system.title} for a batch of {batch} on {gpus} GPUs: in KTO it writes "
            "micro-batches of 2 or more, because TRL takes no other, and the recipe's is 1. If a GPU holds 2, write 2 "
            "and half the accumulation steps behind it"
        )
    if not batch % gpus:
        text = f"{system.title} cannot train a batch of {batch} on {gpus} GPUs: no equal split fits the recipe's "
        return f"{text}micro-batch, groups, evaluation batch and what a GPU holds. {where}, or {run}"
    rest = f"{batch} % {gpus} = {batch % gpus}"
    return (
        f"{system.title} cannot train a batch of {batch} on {gpus} GPUs: its micro-batches are equal, and {rest}. "
        f"{where} (nearest batch at {gpus}: {nearest}, {percent(nearest, batch):+.1f}%), or {run}"
    )
