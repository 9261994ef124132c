"""The class that a user trains with: a trainer with planner's batches in it."""

from typing import Any

from planner.errors import UserError
from planner.plan.factory import MAX_GLOBAL_BATCH
from planner.trl.refusals import unknown_trainer


def exact(trainer: type, *, global_batch: int) -> Any:
    """A subclass of a trainer whose optimizer steps use exactly `global_batch` samples, on any number of processes.

    Its settings are those of the trainer. `per_device_train_batch_size` is the largest micro-batch of a process, and
    `gradient_accumulation_steps` stays away, because planner derives it.

    Args:
        trainer: TRL's SFTTrainer or DPOTrainer, or transformers' Trainer.
        global_batch: samples (pairs for DPO, packed rows with packing) of an optimizer step.

    Raises:
        UserError: the trainer's loss cannot be split exactly, or `global_batch` is out of range.
    """
    if reason := unknown_trainer(trainer):
        raise UserError(reason)
    if not 1 <= global_batch <= MAX_GLOBAL_BATCH:
        raise UserError(f"global_batch is {global_batch}. Write a whole number from 1 to {MAX_GLOBAL_BATCH}")
    from planner.trl.exact_batch import ExactBatch  # which loads torch and transformers

    return type(trainer.__name__, (ExactBatch, trainer), {"global_batch": global_batch})
