"""Writes a job as options of torchtitan 0.2.2, which needs a global batch that GPUs x local batch divides.

In August 2026, after 0.3.0, pull request 4121 changed sequences to tokens: `num_tokens_per_microbatch_per_dp_rank`,
`num_tokens_per_train_step` and `max_context_length` replace `local_batch_size`, `global_batch_size` and `seq_len`.
"""

from collections.abc import Sequence

from planner.job import AdamW
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import Rendering, clip_of, leave_model, length_in_steps, warmup_steps
from planner.recipes.scalars import number
from planner.recipes.system import BatchSplit
from planner.recipes.trl.render_trackers import trackers_to_torchtitan


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command of torchtitan for a split, with the arguments and a note on versions."""
    sizes = [f"--training.local_batch_size {split.micro}", f"--training.global_batch_size {split.batch}"]
    context = split.recipe.draft.job.get("model", {}).get("context")
    return Rewrite(
        command=f"{split.assignments}NGPU={split.gpus} ./run_train.sh {' '.join([*sizes, *arguments])}",
        notes=(_version_note(split.micro, split.batch, context),),
    )


def _version_note(micro: int, batch: int, context: int | None) -> str:
    """The version of the options, and the batch in a newer one's. `context` is in tokens, None if unknown."""
    sizes = {
        "num_tokens_per_microbatch_per_dp_rank": micro,
        "num_tokens_per_train_step": batch,
        "max_context_length": 1,
    }
    each = {name: str(size * context) if context else f"{size} x seq_len" for name, size in sizes.items()}
    newer = " ".join(f"--training.{name} {value}" for name, value in each.items())
    return (
        "for torchtitan 0.2.2 (0.3.0 has the same batch options, but sets the optimizer in param_groups). Since August "
        f"2026 it counts tokens: write {newer}"
    )


def render_command(rendering: Rendering) -> None:
    """Write the job's values as options of torchtitan."""
    job, train = rendering.job, rendering.job.train
    rendering.leave("model.path", "torchtitan has its own models and checkpoints (--model.flavor)")
    rendering.write_number("model.context", "--training.seq_len ")
    leave_model(rendering)
    _optimizer(rendering)
    names = "train.steps train.examples train.epochs"
    arguments = [f"--training.steps {steps}"] if (steps := length_in_steps(job)) else []
    rendering.write_or_leave(names, arguments, "torchtitan counts steps (--training.steps)")
    rendering.write("train.clip_norm", f"--training.max_norm {clip_of(job, 'inf')}")
    _schedule(rendering)
    param = "bfloat16" if train.precision == "bf16" else "float32"
    rendering.write("train.precision", f"--training.mixed_precision_param {param}")
    mode = "full" if train.activation_checkpointing else "none"
    rendering.write("train.activation_checkpointing", f"--activation_checkpoint.mode {mode}")
    rendering.write("train.seed", f"--debug.seed {train.seed}")
    trackers_to_torchtitan(rendering)
    rendering.leave("data", "torchtitan has its own data sets (--training.dataset)")


def _optimizer(rendering: Rendering) -> None:
    optimizer = rendering.job.train.optimizer
    if isinstance(optimizer, AdamW):
        beta1, beta2 = optimizer.betas
        rendering.write(
            "train.optimizer",
            "--optimizer.name AdamW",
            f"--optimizer.lr {number(optimizer.lr)}",
            f"--optimizer.beta1 {number(beta1)}",
            f"--optimizer.beta2 {number(beta2)}",
            f"--optimizer.eps {number(optimizer.eps)}",
            f"--optimizer.weight_decay {number(optimizer.weight_decay)}",
        )
    elif optimizer.kind != "own":
        rendering.write("train.optimizer.lr", f"--optimizer.lr {number(optimizer.lr)}")
    rendering.leave("train.optimizer", "torchtitan has only Adam and AdamW, so it trains by AdamW")


def _schedule(rendering: Rendering) -> None:
    schedule = rendering.job.train.schedule
    if schedule.kind == "constant":
        rendering.write("train.schedule.kind train.schedule.final_fraction", "--lr_scheduler.decay_ratio 0")
    else:
        rendering.write("train.schedule.kind", f"--lr_scheduler.decay_type {schedule.kind}")
        lowest = number(schedule.final_fraction)
        rendering.write("train.schedule.final_fraction", f"--lr_scheduler.min_lr_factor {lowest}")
    arguments = [f"--lr_scheduler.warmup_steps {steps}"] if (steps := warmup_steps(rendering.job)) else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write --lr_scheduler.warmup_steps")
