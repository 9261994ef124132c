"""The keys of a DeepSpeed file that concern a batch or that a job replaces (runtime/config.py). It takes any others."""

from planner.recipes.rule import Rules, about, key, keys, reads

BATCH, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
_FACTOR = "the batch is micro-batch x accumulation steps x GPUs, and DeepSpeed fills in what is missing"

RULES = Rules(
    (
        *about(
            "what makes the batch",
            key(BATCH, ours="batch.global", value="whole", effect=reads(_FACTOR)),
            key(MICRO, ours="batch.max_micro", value="whole", effect=reads(_FACTOR)),
            key(STEPS, value="whole", effect=reads(_FACTOR)),
        ),
        *about(
            "the rest",
            key("gradient_clipping", ours="train.clip_norm", value="norm", default=0.0),
            key("zero_optimization", value="tree", why="planner shards by FSDP2"),
            keys("bf16 fp16", value="section", why="your loop decides the precision"),
            key("optimizer", value="section", why="your loop has its own optimizer"),
            key("scheduler", value="section", why="your loop has its own schedule"),
            key("steps_per_print", value="real", why="planner records and tracks every step"),
            key("wall_clock_breakdown", value="truth", why="the ledger records every step's time"),
            keys("wandb tensorboard", value="section", ours="tracking"),
            keys("csv_monitor comet", value="section"),
        ),
    )
)
