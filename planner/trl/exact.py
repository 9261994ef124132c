"""The class that a user trains with: a trainer with planner's batches in it."""

from typing import Any

from planner.errors import UserError


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
    from planner.plan import BatchSizes
    from planner.trl.exact_batch import ExactBatch
    from planner.trl.refusals import unknown_trainer

    if reason := unknown_trainer(trainer):
        raise UserError(reason)
    BatchSizes(global_batch=global_batch, max_micro=1)
    return type(trainer.__name__, (ExactBatch, trainer), {"global_batch": global_batch})
