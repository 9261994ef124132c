"""torchtitan's options, for writing: it refuses a global batch that GPUs and local batch do not divide.

Written for torchtitan 0.2.2. In August 2026, after 0.3.0, its pull request 4121 began to count tokens, not sequences:
`num_tokens_per_microbatch_per_dp_rank`, `num_tokens_per_train_step` and `max_context_length` stand in the place of
`local_batch_size`, `global_batch_size` and `seq_len`.
"""

from collections.abc import Sequence

from planner.job import AdamW
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import Rendering, clip_of, leave_model, length_in_steps, warmup_steps
from planner.recipes.scalars import number
from planner.recipes.system import BatchSplit, System


def render(split: BatchSplit, words: Sequence[str]) -> Rewrite:
    """What to type for a batch at a GPU count."""
    sizes = [f"--training.local_batch_size {split.micro}", f"--training.global_batch_size {split.batch}"]
    context = split.recipe.draft.job.get("model", {}).get("context")
    return Rewrite(
        command=f"NGPU={split.gpus} ./run_train.sh {' '.join([*sizes, *words])}",
        notes=(_version_note(split.micro, split.batch, context),),
    )


def _version_note(micro: int, batch: int, context: int | None) -> str:
    """Which version the options are of, and what a newer one is told instead; `context` in tokens, none if unknown."""
    sizes = {
        "num_tokens_per_microbatch_per_dp_rank": micro,
        "num_tokens_per_train_step": batch,
        "max_context_length": 1,
    }
    each = {name: str(size * context) if context else f"{size} x seq_len" for name, size in sizes.items()}
    newer = " ".join(f"--training.{name} {value}" for name, value in each.items())
    return (
        "for torchtitan 0.2.2; 0.3.0 has the same batch options and says the optimizer in param_groups; since August "
        f"2026 it counts tokens, and the batch is {newer}"
    )


def render_command(rendering: Rendering) -> None:
    """Options of torchtitan."""
    job, train = rendering.job, rendering.job.train
    rendering.leave("model.path", "torchtitan has models and checkpoints of its own (--model.flavor)")
    rendering.write_number("model.context", "--training.seq_len ")
    leave_model(rendering)
    _optimizer(rendering)
    names = "train.steps train.examples train.epochs"
    words = [f"--training.steps {steps}"] if (steps := length_in_steps(job)) else []
    rendering.write_or_leave(names, words, "torchtitan counts steps (--training.steps)")
    rendering.write("train.clip_norm", f"--training.max_norm {clip_of(job, 'inf')}")
    _schedule(rendering)
    param = "bfloat16" if train.precision == "bf16" else "float32"
    rendering.write("train.precision", f"--training.mixed_precision_param {param}")
    mode = "full" if train.activation_checkpointing else "none"
    rendering.write("train.activation_checkpointing", f"--activation_checkpoint.mode {mode}")
    rendering.write("train.seed", f"--debug.seed {train.seed}")
    rendering.leave("data", "torchtitan has data sets of its own (--training.dataset)")


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
    rendering.leave("train.optimizer", "torchtitan has Adam and AdamW; it trains by AdamW")


def _schedule(rendering: Rendering) -> None:
    schedule = rendering.job.train.schedule
    if schedule.kind == "constant":
        rendering.write("train.schedule.kind train.schedule.final_fraction", "--lr_scheduler.decay_ratio 0")
    else:
        rendering.write("train.schedule.kind", f"--lr_scheduler.decay_type {schedule.kind}")
        lowest = number(schedule.final_fraction)
        rendering.write("train.schedule.final_fraction", f"--lr_scheduler.min_lr_factor {lowest}")
    words = [f"--lr_scheduler.warmup_steps {steps}"] if (steps := warmup_steps(rendering.job)) else []
    rendering.write_or_leave("train.schedule.warmup", words, "write --lr_scheduler.warmup_steps")


SYSTEM = System(
    name="torchtitan", title="torchtitan", render=render, render_command=render_command, methods=("lm", "sft")
)
