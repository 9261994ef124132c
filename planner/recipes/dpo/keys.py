"""The keys of the DPO repository (config/config.yaml at f8b8c0f), in the order of that file."""

from planner.recipes.rule import NO_WANDB, Rules, about, key, reads, says

TITLE = "the DPO repository"
LOSSES = ("sft", "dpo", "ipo")
TRAINERS = ("BasicTrainer", "FSDPTrainer", "TensorParallelTrainer")
MODELS = {
    "pythia28": ("EleutherAI/pythia-2.8b", "GPTNeoXLayer"),
    "pythia69": ("EleutherAI/pythia-6.9b", "GPTNeoXLayer"),
    "gpt2-large": ("gpt2-large", "GPT2Block"),
    "gpt2-xl": ("gpt2-xl", "GPT2Block"),
    "gptj": ("EleutherAI/gpt-j-6b", "GPTJBlock"),
    "llama7b": ("huggyllama/llama-7b", "LlamaDecoderLayer"),
}
"""config/model/*.yaml: name -> model and class of its blocks"""
_OWN_NAME = "the job has its own name"
_FOLDER = "checkpoint.path is the folder of the run"
_NO_SAMPLING = "planner does not sample during evaluation"
_DRY = "use planner run --dry-run, which starts nothing"

_DTYPES = ("float32", "bfloat16", "float16", "float64", "float", "half", "double", None)

CONFIG = Rules(
    (
        *about(
            "the run and what makes the batch",
            key("seed", ours="train.seed", value="whole", least=0, default=0),
            key("exp_name", value="scalar", ours="name", why=_OWN_NAME),
            key("batch_size", ours="batch.global", value="whole", default=4, effect=reads("the batch of all GPUs")),
            key(
                "eval_batch_size",
                value="whole",
                default=16,
                why="planner splits evaluation as it splits training",
                effect=reads("a GPU without a row of it ends some models"),
            ),
            key("debug", value="truth", default=False, why=_DRY),
            key("fsdp_port", value="real", mark=True, why="planner chooses the port"),
            key("datasets", ours="data.mixture", default=["hh"], mark=True),
            key("wandb.enabled", ours="tracking", value="truth", default=True),
            key("wandb.entity", value="scalar", ours="tracking.wandb.entity"),
            key("wandb.project", value="scalar", ours="tracking.wandb.project",
                default="direct-preference-optimization"),
            key("local_dirs", default=[], mark=True, why=_FOLDER),
            key("sample_during_eval", value="truth", default=True, mark=True, why=_NO_SAMPLING),
            key("n_eval_model_samples", value="real", default=16, mark=True, why=_NO_SAMPLING),
            key(
                "do_first_eval",
                value="truth",
                default=True,
                mark=True,
                why="it says whether step 0 is evaluated, which eval.every decides in planner",
            ),
            key("local_run_dir", value="scalar", mark=True, why=_FOLDER),
            key("lr", ours="train.optimizer.lr", value="number", default=5e-7),
            key(
                "gradient_accumulation_steps",
                value="whole",
                default=1,
                effect=reads("the batch is cut into that many slices, and each into one for each GPU"),
            ),
            key("max_grad_norm", ours="train.clip_norm", value="norm", default=10.0),
            key("max_length", ours="model.context", value="whole", least=2, default=512),
            key("max_prompt_length", ours="data.max_prompt", value="whole", default=256, mark=True),
            key("n_epochs", ours="train.epochs", value="whole", least=0, default=1),
            key("n_examples", ours="train.examples", value="whole", least=0, mark=True),
            key("n_eval_examples", ours="eval.samples", value="whole", default=256, mark=True),
            key(
                "trainer",
                value="text",
                default="BasicTrainer",
                why="planner shards by FSDP2 over any number of GPUs and machines",
                effect=reads("only FSDPTrainer starts a process for each GPU"),
            ),
            key("optimizer", ours="train.optimizer.kind", value="text", default="RMSprop"),
            key("warmup_steps", ours="train.schedule.warmup", value="whole", least=0, default=150),
            key("activation_checkpointing", ours="train.activation_checkpointing", value="truth", default=False,
                mark=True),
            key("eval_every", ours="eval.every", value="whole", default=20_000,
                effect=reads("below a batch it becomes 0, which ends the run")),
            key("minimum_log_interval_secs", value="real", default=1.0, mark=True,
                why="planner records and tracks every step"),
        ),
        *about(
            "the model",
            key("model.name_or_path", ours="model.path", value="text", mark=True),
            key("model.tokenizer_name_or_path", value="scalar", mark=True,
                why="planner takes the tokenizer in model.path, so put yours there if it is another"),
            key("model.archive", value="scalar", ours="model.path", mark=True),
            key("model.block_name", value="scalar", mark=True, why="planner finds the block class in the model",
                effect=says("some models refuse an empty batch, others make NaN of it")),
            key("model.policy_dtype", choices=_DTYPES, default="float32", mark=True,
                why="planner's weights and optimizer state are fp32"),
            key("model.fsdp_policy_mp", choices=_DTYPES, ours="train.precision", mark=True),
            key("model.reference_dtype", choices=_DTYPES, default="float16", mark=True,
                why="planner computes the reference in the precision of the policy"),
        ),
        *about(
            "the loss",
            key("loss.name", value="scalar", ours="objective.kind", mark=True),
            key("loss.beta", ours="objective.beta", value="number", mark=True),
            key("loss.label_smoothing", ours="objective.label_smoothing", value="number", default=0, mark=True),
            key("loss.reference_free", ours="objective.reference", value="truth", default=False, mark=True),
        ),
    )
)  # fmt: skip
"""the keys of config.yaml, with their values there"""
RULES = CONFIG | Rules(about("trackers", key("wandb", value="section", why=NO_WANDB)))
