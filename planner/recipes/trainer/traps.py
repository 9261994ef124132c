"""What a user must know of how a recipe is started: files that planner did not read, DataParallel, resuming."""

import re

from planner.recipes.recipe import Trap


def version_of(text: str) -> tuple[int, ...]:
    """`4.53.3` -> (4, 53, 3)."""
    return tuple(int(part) for part in re.findall(r"\d{1,6}", text)[:3])


def data_parallel(batch_of_one: int, *, is_alone: bool) -> Trap:
    """What several GPUs do without a launcher. `batch_of_one` is m x A, `is_alone` whether the command has none."""
    text = (
        "Without a launcher, `python script.py` on several GPUs multiplies per_device_train_batch_size by their number."
    )
    if is_alone:
        text += (
            " TRL 1.16 does not: it spreads the model over them (device_map auto), and the batch is "
            f"{batch_of_one} at every count. Start this script by accelerate launch."
        )
    return Trap(name="DataParallel", text=text)


def not_read(files: tuple[str, ...]) -> Trap | None:
    """A trap on files of the launcher or DeepSpeed that are not on this machine, None if there are none."""
    if not files:
        return None
    text = (
        f"planner did not read {', '.join(files)} (not on this machine). The batch is as shown if no tp_size, cp_size "
        "or sp_size there is above 1. transformers refuses to start if DeepSpeed's batch sizes there are neither auto "
        "nor the recipe's."
    )
    return Trap(name="file not read", text=text)


def resumes(transformers: tuple[int, ...]) -> Trap | None:
    """A trap on a recipe that resumes from a checkpoint. None if the oldest version keeps the recipe's sizes."""
    if transformers >= (5, 0):
        return None
    text = (
        "transformers 4 resumes with the per_device_train_batch_size that the checkpoint was trained with, not with "
        "the recipe's."
    )
    return Trap(name="resume", text=text)


def padding_free() -> Trap:
    """A trap on a recipe of sft that TRL 1.16 refuses."""
    text = (
        "TRL 1.16 refuses padding_free beside max_length (1024 by default), because it then cuts no rows. Cut them "
        "beforehand, and write max_length null."
    )
    return Trap(name="padding_free", text=text)


def by_length() -> Trap:
    """A trap on a recipe whose steps have rows of similar length (transformers' LengthGroupedSampler)."""
    text = (
        "group_by_length puts rows of similar length into a step, and which ones depends on m and A. planner draws "
        "each step from all rows, and batch.max_tokens saves the padding."
    )
    return Trap(name="rows by length", text=text)
