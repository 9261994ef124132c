"""Reads the settings of a recipe on the Trainer on which its verdicts depend."""

from planner.recipes.entries import KeyReader
from planner.recipes.scalars import number
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import Trained
from planner.recipes.trainer.sizes import BatchSizes

# Methods of TRL, and of systems on it, that train on completions which they generate.
_GENERATING = ("grpo", "gdpo", "ebft")


def facts_of(
    keys: KeyReader, trained: Trained, sizes: BatchSizes, gpus: int, launch: LaunchSettings | None
) -> TrainerFacts:
    """The settings on which the verdicts depend. Notes mistakes in `keys`.

    `gpus` is the count that the recipe was tuned for.
    """
    method, unit = trained.method, trained.unit
    strategy = str(keys.value("eval_strategy", keys.value("evaluation_strategy", "no"))).lower()
    evaluates = strategy in {"steps", "epoch"}
    generates = method in _GENERATING
    num_generations = keys.whole("num_generations", 8, least=2) if method == "grpo" else None
    steps, epochs = _length(keys)
    warmup, warmup_key = _warmup(keys)
    return TrainerFacts(
        method=method,
        loss=trained.loss,
        unit=unit,
        micro=sizes.micro,
        accumulation=sizes.accumulation,
        tuned_gpus=gpus,
        batch=sizes.micro * sizes.accumulation * (1 if sizes.splits else gpus),
        eval_micro=keys.read("per_device_eval_batch_size"),
        evaluates=evaluates,
        splits_batches=sizes.splits,
        even_batches=keys.value("accelerator_config.even_batches", True) is not False,
        drops_last=keys.flag("dataloader_drop_last"),
        num_generations=num_generations,
        generation_batch=_generation_batch(keys) if generates else None,
        eval_generations=keys.whole("num_generations_eval", num_generations or 8) if generates else 8,
        steps_per_generation=_steps_per_generation(keys) if generates else 1,
        names_steps=generates and keys.has("steps_per_generation"),
        deepspeed=sizes.deepspeed,
        mesh=launch.mesh if launch else None,
        accelerator=sizes.accelerator,
        num_steps=sizes.num_steps,
        unread=sizes.unread,
        resumes=bool(keys.value("resume_from_checkpoint")),
        launch_kind="DEEPSPEED" if sizes.deepspeed else launch.kind if launch else "",
        epochs=epochs,
        max_steps=steps,
        warmup=warmup,
        warmup_key=warmup_key,
        warmup_written=number(keys.number(warmup_key, 0.0)),
        eval_every=_eval_every(keys, strategy) if evaluates else "",
        old_keys=tuple(key for key in keys.rules.of(is_old=True) if keys.wrote(key)),
        packs=unit == "packed row",
        # The other methods have samplers of their own, or rows without a length.
        groups_by_length=unit == "example" and groups_by_length(keys),
    )


def groups_by_length(keys: KeyReader) -> bool:
    """Whether the Trainer is to put rows of similar length into a step."""
    return keys.flag("group_by_length") or keys.value("train_sampling_strategy") == "group_by_length"


def _length(keys: KeyReader) -> tuple[int | None, float | None]:
    """Steps and epochs of the run, one of them None."""
    max_steps = keys.value("max_steps", -1)
    epochs_rule = isinstance(max_steps, int | float) and max_steps <= 0
    steps = None if epochs_rule else keys.whole("max_steps")
    epochs = None if steps else keys.read("num_train_epochs")
    if epochs == 0:
        keys.refuse("num_train_epochs", "Write a number above 0, or max_steps")
    return steps, epochs


def _generation_batch(keys: KeyReader) -> int | None:
    """GRPO's generation_batch_size, None if the recipe does not have it."""
    generation = keys.whole("generation_batch_size") if keys.has("generation_batch_size") else None
    if generation and keys.has("steps_per_generation"):
        keys.wrong("generation_batch_size and steps_per_generation: TRL takes only one of them. Remove one")
    return generation


def _steps_per_generation(keys: KeyReader) -> int:
    """GRPO's steps_per_generation. TRL takes its default before the Trainer reads num_steps."""
    return keys.whole("steps_per_generation", keys.whole("gradient_accumulation_steps", 1))


def _warmup(keys: KeyReader) -> tuple[str, str]:
    """The warmup as a cadence, and its key. warmup_steps wins if above 0, and below 1 it is a fraction."""
    steps, ratio = keys.number("warmup_steps", 0.0), keys.number("warmup_ratio", 0.0)
    if steps >= 1:
        return f"{round(steps)} steps", "warmup_steps"
    key = "warmup_steps" if steps else "warmup_ratio"
    return f"{number(round((steps or ratio) * 100, 6))}%", key


def default_logging(keys: KeyReader) -> float:
    """After how many steps the recipe's system logs, and evaluates, if nothing says it."""
    row = keys.rules.of_key("logging_steps")
    assert row is not None
    return float(row.default)


def _eval_every(keys: KeyReader, strategy: str) -> str:
    if strategy == "epoch":
        keys.value("eval_steps")
        return "1 epoch"
    every = keys.number("eval_steps") if keys.has("eval_steps") else keys.number("logging_steps", default_logging(keys))
    if not every or (every > 1 and not every.is_integer()):
        key = "eval_steps" if keys.has("eval_steps") or not every else "logging_steps"
        keys.refuse(key, "Write a whole number of steps, or a fraction of the run below 1")
    return f"{round(every)} steps" if every >= 1 else f"{number(round(every * 100, 6))}%"
