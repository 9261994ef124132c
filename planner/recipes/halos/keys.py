"""The keys of HALOs (config/ at 4831988 and 2f136e0), in the order of its files, and those of its branch legacy."""

from planner.recipes.rule import NO_WANDB, Rules, about, key, keys, reads, says

MODELS = ("llama", "mistral", "pythia", "gemma", "qwen", "zephyr", "archangel")
LOSSES = ("sft", "csft", "dpo", "cdpo", "ipo", "simpo", "slic", "kto", "ppo", "grpo", "bradley-terry")
"""config/loss/*.yaml"""
LOSSES_OF_OTHERS = ("orpo", "kto-zero", "kto-simple", "kto-surprisal", "kto-logsigmoid")
"""those of other versions"""
_SPLITS_EVALUATION = "planner splits evaluation as it splits training"
_FOLDER = "checkpoint.path is the folder of the run"
_IMPLIED = "the objective implies it"
_DRY = "use planner run --dry-run, which starts nothing"
_NOT_READ = "HALOs computes it and does not read it"
_HUMANLINE = says("the reference changes during training")

_DTYPES = ("float32", "bfloat16", "float16", "float64", "float", "half", "double", None)

CONFIG = Rules(
    (
        *about(
            "the run",
            key("seed", ours="train.seed", value="whole", least=0, default=1),
            key("exp_name", value="scalar", ours="name", why="the job has its own name"),
            key("train_datasets", ours="data.mixture", mark=True),
            key("test_datasets", ours="eval.data", mark=True,
                why="planner holds eval.samples out of the training rows"),
            key("lr", ours="train.optimizer.lr", value="number", default=5e-6),
            key("n_epochs", ours="train.epochs", value="number", default=1),
            key("n_examples", ours="train.examples", value="whole", least=0, mark=True),
            key("n_eval_examples", ours="eval.samples", value="whole", default=256, mark=True),
            key("eval_every", ours="eval.every", value="whole", default=1024,
                effect=reads("below a batch it becomes 0, which ends the run")),
            key("save_every", value="real", default=5120, mark=True, why="HALOs does not read it either"),
            key("warmup", ours="train.schedule.warmup", value="number", default=0.1),
            key("optimizer", ours="train.optimizer.kind", value="text", default="AdamW"),
            key("weight_decay", ours="train.optimizer.weight_decay", value="number", default=0.01),
            key("beta1", ours="train.optimizer.betas", value="number", default=0.9),
            key("beta2", ours="train.optimizer.betas", value="number", default=0.999),
            key("eps", value="real", default=1e-5, why="HALOs does not pass it on either"),
            key("do_first_eval", value="truth", default=True, mark=True,
                why="it has no effect in HALOs, which always evaluates step 0"),
            key("intermediate_checkpoints", value="truth", default=False, mark=True,
                why="planner commits at a measured interval"),
            key("cache_reference_logprobs", value="truth", ours="objective.reference", default=False, mark=True,
                why="objective.reference says where the log-probabilities of the reference come from"),
            key("load_reference_logprobs", value="text", mark=True),
            key("humanline", value="truth", default=False, mark=True, effect=_HUMANLINE),
            key("humanline_iters", value="real", default=1, mark=True),
            key("log_epsilon_P", value="real", default=-1.0, mark=True),
            key("log_epsilon_R", value="real", default=1.5, mark=True),
            key("online", value="truth", default=False,
                why="planner trains a round on a fixed file as one run, and you sample and label between runs"),
            keys("frac_unique_desirable frac_unique_undesirable", value="number", default=1.0, mark=True),
            key("step_scheduler_with_optimizer", value="truth", default=False, mark=True,
                why="planner's schedule counts steps"),
            key("cache_dir", value="scalar", why=_FOLDER),
            key("debug", value="truth", default=False, why=f"{_DRY}. In HALOs wandb logs also with debug true"),
            key("wandb.enabled", ours="tracking", value="truth", default=True),
            key("wandb.entity", value="scalar", ours="tracking.wandb.entity"),
            key("wandb.project", value="scalar", ours="tracking.wandb.project", default="halos"),
            key("template_tokens", value="section", mark=True, why="the tokenizer's chat template marks turns"),
        ),
        *about(
            "the model, and what makes the batch",
            key("model.name_or_path", ours="model.path", value="text", mark=True),
            key("model.tokenizer_name_or_path", value="scalar", mark=True,
                why="planner takes the tokenizer in model.path"),
            key("model.load_from", value="scalar", ours="model.path", mark=True),
            key("model.from_checkpoint", value="scalar", mark=True, why="planner resumes from the run's own folder"),
            key("model.block_name", value="scalar", mark=True, why="planner finds the block class in the model"),
            key("model.policy_dtype", choices=_DTYPES, ours="train.precision", default="bfloat16", mark=True),
            key("model.reference_dtype", choices=_DTYPES, default="bfloat16", mark=True,
                why="planner computes the reference in the precision of the policy"),
            key("model.max_grad_norm", ours="train.clip_norm", value="norm", mark=True,
                effect=says("each GPU clips its own shard by that shard's norm")),
            key("model.v_head_max_grad_norm", value="real", mark=True,
                why="it belongs to PPO's value head, which your loop trains"),
            key("model.max_length", ours="model.context", value="whole", least=2, default=1250, mark=True),
            key("model.max_prompt_length", ours="data.max_prompt", value="whole", mark=True),
            key("model.activation_checkpointing", ours="train.activation_checkpointing", value="truth", default=True,
                mark=True),
            key("model.batch_size", ours="batch.global", value="whole", default=32, mark=True,
                effect=reads("the batch of all GPUs, of all accumulation steps since 2025-05-01 and of one before")),
            key("model.gradient_accumulation_steps", value="whole", default=1, mark=True,
                effect=reads("HALOs refuses counts that do not divide the batch with it")),
            key("model.eval_batch_size", value="whole", default=32, mark=True, why=_SPLITS_EVALUATION,
                effect=reads("HALOs refuses counts that do not divide it")),
            key("model.attn_implementation", value="scalar", ours="model.attention", mark=True),
            key("model.use_peft", ours="model.lora", value="truth", default=False, mark=True),
            key("model.load_lora_from", value="text", mark=True),
        ),
        *about(
            "the loss",
            key("loss.beta", ours="objective.beta", value="number", mark=True,
                default={"dpo": 0.1, "cdpo": 0.1, "simpo": 10.0, "slic": 1.0, "kto": 0.1, "grpo": 0.01}),
        ),
    )
)  # fmt: skip
"""the keys of config.yaml and of part of model/, with their values there"""
OF_LOSS = Rules(
    about(
        "the loss",
        key("loss.trainer", value="scalar", mark=True, why=_IMPLIED),
        key("loss.dataloader", value="scalar", mark=True, why="the data implies it",
            effect=reads("an unpaired loader's batch counts completions")),
        key("loss.sync_reference", value="truth", default=False, effect=_HUMANLINE),
        key("loss.control_tokens.chosen", value="scalar", default={"csft": "<|good|>"}),
        key("loss.control_tokens.rejected", value="scalar", default={"csft": "<|bad|>"}),
        key("loss.epsilon", ours="objective.label_smoothing", value="number", default={"cdpo": 0.2, "grpo": 0.01}),
        key("loss.tau", ours="objective.beta", value="number", default={"ipo": 0.1}),
        key("loss.gamma_beta_ratio", ours="objective.gamma_beta_ratio", value="number", default={"simpo": 0.3}),
        key("loss.lambda_coef", value="real", default={"slic": 0.1}),
        key("loss.desirable_weight", ours="objective.desirable_weight", value="number", default={"kto": 1.0}),
        key("loss.undesirable_weight", ours="objective.undesirable_weight", value="number", default={"kto": 1.0}),
        key("loss.sequence_level", value="truth", default={"grpo": True}),
        key("loss.ppo_epochs", value="real", default={"ppo": 1}),
        key("loss.cliprange", value="real", default={"ppo": 0.5}),
        key("loss.lam", value="real", default={"ppo": 0.95}),
        key("loss.gamma", value="real", default={"ppo": 0.99}),
        key("loss.critic_coef", value="real", default={"ppo": 0.01}),
        key("loss.KL_coef", value="real", default={"ppo": 0.1}),
    )
)  # fmt: skip
"""the keys of config/loss/*.yaml, with their values there for each loss that has them"""
RULES = (
    CONFIG
    | OF_LOSS
    | Rules(
        about(
            "keys that other versions have, or that no file of the configuration sets",
            keys("loss.OR_scale loss.tokenwise_KL loss.length_normalization"),
            keys("loss.policy_hf_model_class loss.reference_hf_model_class humanline_alpha"),
            keys("loss.name loss.use_reference_model datasets warmup_steps use_fsdp"),
            keys("model.peft loss.control_tokens", value="section"),
            key("model.peft.lora_r", ours="model.lora.rank", value="whole", default=64),
            key("model.peft.lora_alpha", ours="model.lora.alpha", value="number", default=256.0),
            key("model.peft.lora_dropout", ours="model.lora.dropout", value="number", default=0.05),
            key("model.peft.target_modules", ours="model.lora.targets"),
            key("local_run_dir", value="scalar", why=_FOLDER),
            key("wandb", value="section", why=NO_WANDB),
            key("minimum_log_interval_secs", value="real", why="planner records and tracks every step"),
            keys("model.microbatch_size model.eval_microbatch_size", why=_NOT_READ),
            key("model.reward_model", value="section", why="only methods with a reward model read it"),
            key(
                "model.reward_model_path",
                value="scalar",
                why="HALOs does not read it either, its key is model.reward_model.path",
            ),
            key("trainer", value="scalar", why=_IMPLIED),
        )
    )
)
_NO_SAMPLING = "planner does not sample during evaluation"
_ONLY_THE_RATE = "the branch legacy passes only the rate to the optimizer"
LEGACY = Rules(
    about(
        "the branch legacy",
        key("model.max_length", ours="model.context", value="whole", least=2, default=1024, mark=True),
        key("debug", why=_DRY),
        key("do_first_eval",
            mark=True,
            why="planner evaluates at every eval.every and after the last step, not before the first"),
        keys("weight_decay beta1 beta2", why=_ONLY_THE_RATE),
        keys("loss.name loss.use_reference_model", why=_IMPLIED),
        key("datasets", ours="data.mixture"),
        key("warmup_steps", ours="train.schedule.warmup", value="whole", least=0, default=0),
        key("use_fsdp", value="truth", mark=True, effect=reads("without it one process uses all GPUs")),
        key("fsdp_port", value="real", why="planner chooses the port"),
        key("mode", value="scalar", mark=True, why="planner only trains"),
        keys("n_samples top_p samples_dir", why=_NO_SAMPLING),
        key("saved_policy", value="scalar", why=_FOLDER),
        key("model.use_flash_attention", why="model.attention sets it"),
        keys("human_prefix human_suffix assistant_prefix assistant_suffix",
             why="the tokenizer's chat template, or the text of your rows, marks turns"),
    )
)  # fmt: skip
"""rows of the branch legacy that differ, or that only it has"""
OF_LEGACY = RULES | LEGACY
