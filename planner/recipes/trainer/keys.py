"""The keys that reach transformers' Trainer: its arguments, and the sections that they hold, a row for each.

The names are those of transformers 4.53 to 5.23, accelerate 1.15 and DeepSpeed's file. A test compares them with the
installed packages. `launch_keys` has the launcher's options and variables.
"""

from collections.abc import Mapping

from planner.recipes.rule import EMPTY, Effect, Rules, about, key, keys, reads, refuses, says

MICRO, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
"""the two keys of which the Trainer makes its batch"""
EVERY_STEP = "planner records and tracks every step"
SHARED = "Those GPUs share a micro-batch: remove it, and write the count of data-parallel GPUs"
_SPREAD = "It spreads the model over GPUs, which then share a micro-batch: remove it, and count data-parallel GPUs"
_FROM_PYTHON = "transformers takes it from Python alone: remove it, and write its sizes in the accelerate file"
_COMMITS = "planner commits at a measured interval (checkpoint.every)"
TRACKING = "write tracking in the job"
_INTERVALS = ("no", "steps", "epoch")
SCHEDULERS = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
)  # fmt: skip
"""transformers' SchedulerType"""
NOT_NULL = ("warmup_steps", "save_steps", "logging_steps", "dataloader_num_workers")
"""numbers that the Trainer compares when it starts, and so does not take null for"""
OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_torch_4bit",
    "adamw_torch_8bit", "adamw_8bit", "adamw_bnb_8bit", "adamw_anyprecision", "adamw_hf", "adamw_apex_fused",
    "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit", "adafactor", "adagrad", "adalomo", "ademamix",
    "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "apollo_adamw", "apollo_adamw_layerwise",
    "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise", "grokadamw", "lion", "lion_32bit", "lion_8bit", "paged_lion", "paged_lion_32bit",
    "paged_lion_8bit", "lomo", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "sgd",
    "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "stable_adamw",
)  # fmt: skip
"""transformers' OptimizerNames, with those that only older versions have"""

TRAINING_ARGUMENTS = Rules(
    (
        *about(
            "what makes the batch",
            key(
                "per_device_train_batch_size",
                ours="batch.global",
                value="whole",
                default=8,
                effect=reads("m, of one process"),
                unset="free",
            ),
            key(
                "gradient_accumulation_steps",
                ours="batch.global",
                value="whole",
                default=1,
                effect=reads("A, the micro-batches of an optimizer step"),
                unset="free",
            ),
            key(
                "accelerator_config",
                value="tree",
                effect=reads("split_batches makes m that of all GPUs, num_steps replaces A"),
                unset="decides",
                why="planner distributes the rows itself",
            ),
            key(
                "deepspeed",
                value="tree",
                effect=reads("its three sizes must be auto, or equal the Trainer's"),
                unset="decides",
                why="planner shards by FSDP2",
            ),
            key(
                "auto_find_batch_size",
                value="truth",
                effect=refuses(
                    "The Trainer lowers per_device_train_batch_size after an out-of-memory error and keeps "
                    "gradient_accumulation_steps, so no global batch is fixed: write false, and the size that fitted",
                    False,
                ),
            ),
            key("parallelism_config", value="tree", effect=refuses(_FROM_PYTHON)),
            key(
                "mp_parameters",
                effect=refuses("SageMaker's model parallelism shares a micro-batch between GPUs: remove it", ""),
            ),
            key("resume_from_checkpoint", effect=says("transformers 4 takes m from the checkpoint")),
            key("fsdp_config", value="tree", effect=reads("xla with SPMD makes all devices one process")),
        ),
        *about(
            "the optimizer and its schedule",
            key(
                "learning_rate",
                ours="train.optimizer.lr",
                value="number",
                default=5e-5,
                unset="free",
            ),
            key("weight_decay", ours="train.optimizer.weight_decay", value="number", default=0.0, unset="job"),
            key("adam_beta1", ours="train.optimizer.betas", value="number", default=0.9),
            key("adam_beta2", ours="train.optimizer.betas", value="number", default=0.999),
            key("adam_epsilon", ours="train.optimizer.eps", value="number", default=1e-08),
            key("max_grad_norm", ours="train.clip_norm", value="norm", default=1.0, unset="job"),
            key(
                "lr_scheduler_type",
                choices=SCHEDULERS,
                grows=True,
                ours="train.schedule.kind",
                default="linear",
                unset="job",
            ),
            key("warmup_ratio", ours="train.schedule.warmup", value="number", default=0.0, is_old=True),
            key("warmup_steps", ours="train.schedule.warmup", value="number", default=0.0),
            key(
                "optim", choices=OPTIMIZERS, grows=True, ours="train.optimizer.kind", default="adamw_torch", unset="job"
            ),
            key("adafactor", value="truth"),
            key(
                "average_tokens_across_devices",
                value="truth",
                unset="decides",
                why="in planner every token of the global batch has the same weight",
                is_true=True,
            ),
            key("lr_scheduler_kwargs", value="tree"),
            keys("optim_args optim_target_modules"),
            keys("label_smoothing_factor neftune_noise_alpha", value="real", alters=EMPTY),
        ),
        *about(
            "the length of the run",
            key("num_train_epochs", ours="train.epochs", value="number", default=3.0),
            key(
                "max_steps",
                value="real",
                ours="train.steps",
                default=-1,
                unset="decides",
                why="-1 means that epochs decide",
            ),
            keys("do_train do_predict", value="truth", stands_alone=True),
        ),
        *about(
            "evaluation",
            key("do_eval", value="truth", why="eval_strategy decides it", stands_alone=True),
            key("eval_strategy", choices=_INTERVALS, ours="eval.every", default="no"),
            key("evaluation_strategy", choices=(*_INTERVALS, None), ours="eval.every", default="no"),
            key("eval_steps", ours="eval.every", value="real"),
            key(
                "eval_accumulation_steps",
                value="real",
                why="it moves evaluation tensors to the CPU and does not accumulate gradients",
            ),
            key(
                "per_device_eval_batch_size",
                value="whole",
                default=8,
                unset="free",
                why="planner splits evaluation as it splits training",
            ),
            keys("eval_delay past_index", value="real"),
            keys("include_for_metrics label_names"),
            keys(
                """
            include_inputs_for_metrics greater_is_better use_legacy_prediction_loop""",
                value="truth",
            ),
            key("metric_for_best_model", value="scalar"),
            keys(
                """
            eval_on_start prediction_loss_only batch_eval_metrics eval_use_gather_object
            load_best_model_at_end jit_mode_eval""",
                value="truth",
                stands_alone=True,
            ),
            key("eval_do_concat_batches", value="truth", is_true=True),
        ),
        *about(
            "logging, saving and the hub",
            key(
                "output_dir", value="scalar", ours="name", unset="free", why="checkpoint.path is the folder of the run"
            ),
            key(
                "overwrite_output_dir",
                value="truth",
                why="planner resumes a run in its folder, so write another checkpoint.path for a new run",
                stands_alone=True,
                is_old=True,
            ),
            key("run_name", ours="name", value="words", unset="free"),
            key("logging_dir", ours="tracking", value="words", unset="free"),
            key("report_to", ours="tracking", value="words", why=TRACKING),
            key("save_strategy", choices=(*_INTERVALS, "best"), why=_COMMITS),
            key("save_steps", value="real", why=_COMMITS),
            key("save_total_limit", value="real", why="checkpoint.keep is 2"),
            key("push_to_hub", value="truth", why="planner export exports a trained run", stands_alone=True),
            key("hub_model_id", value="scalar", ours="name", unset="free"),
            key("project", ours="tracking", value="words", why=TRACKING),
            key("trackio_space_id", ours="tracking", value="words", why=TRACKING),
            key("logging_steps", value="real", default=500.0),
            key("logging_strategy", choices=_INTERVALS),
            keys(
                """
            log_level log_level_replica hub_token hub_revision trackio_bucket_id ray_scope""",
                value="scalar",
            ),
            key(
                "hub_strategy",
                choices=("end", "every_save", "checkpoint", "all_checkpoints"),
            ),
            key("trackio_static_space_id"),
            key("include_tokens_per_second", value="truth"),
            keys(
                """
            logging_first_step logging_nan_inf_filter log_on_each_node save_safetensors
            skip_memory_metrics""",
                value="truth",
                is_true=True,
            ),
            keys(
                """
            disable_tqdm save_on_each_node save_only_model enable_jit_checkpoint
            restore_callback_states_from_checkpoint hub_private_repo hub_always_push""",
                value="truth",
                stands_alone=True,
            ),
            key("include_num_input_tokens_seen", stands_alone=True),
        ),
        *about(
            "precision, memory and speed",
            key(
                "bf16",
                ours="train.precision",
                value="truth",
                default=False,
                note="its default is false",
            ),
            key("fp16", ours="train.precision", value="truth"),
            key("tf32", value="truth", why="planner keeps torch's default", stands_alone=True),
            key(
                "gradient_checkpointing",
                ours="train.activation_checkpointing",
                value="truth",
                is_true=True,
                note="false by default",
            ),
            key(
                "gradient_checkpointing_kwargs",
                value="tree",
                why="planner has kinds of its own (train.activation_checkpointing)",
            ),
            key("torch_compile", value="truth", ours="train.compile", stands_alone=True),
            key(
                "use_liger_kernel",
                value="truth",
                why="planner has losses in chunks. Write train.kernels: liger for Liger's other kernels",
                stands_alone=True,
            ),
            keys(
                """
            fp16_opt_level fp16_backend half_precision_backend torch_compile_backend
            torch_compile_mode torchdynamo""",
                value="scalar",
            ),
            keys("activation_checkpointing_kwargs liger_kernel_config", value="tree"),
            key("torch_empty_cache_steps", value="real"),
            keys(
                """
            bf16_full_eval fp16_full_eval activation_checkpointing use_cache use_ipex""",
                value="truth",
                stands_alone=True,
            ),
        ),
        *about(
            "devices and processes, of which planner takes the count",
            key("ddp_timeout", value="real", why="planner watches its workers"),
            keys("use_cpu no_cuda use_mps_device ddp_find_unused_parameters", value="truth", stands_alone=True),
            key("fsdp", stands_alone=True),
            keys("local_rank tpu_num_cores ddp_bucket_cap_mb fsdp_min_num_params", value="real"),
            keys("tpu_metrics_debug ddp_broadcast_buffers ddp_static_graph", value="truth"),
            keys("debug fsdp_transformer_layer_cls_to_wrap"),
            key("ddp_backend", value="scalar"),
        ),
        *about(
            "which rows come when, not how many",
            key("seed", ours="train.seed", value="whole", least=0, default=42, unset="job"),
            key("group_by_length", value="truth"),
            key("dataloader_drop_last", value="truth", unset="decides", why="planner drops no row"),
            key(
                "remove_unused_columns", value="truth", why="planner reads only the columns that it needs", is_true=True
            ),
            keys("data_seed dataloader_num_workers dataloader_prefetch_factor", value="real"),
            keys(
                """
            length_column_name train_sampling_strategy dataloader_multiprocessing_context""",
                value="scalar",
            ),
            keys("full_determinism ignore_data_skip dataloader_persistent_workers", value="truth", stands_alone=True),
            keys("dataloader_pin_memory dataloader_in_order", value="truth", is_true=True),
        ),
        *about(
            "keys by their beginning",
            key("hub_*", why="planner export exports a trained run"),
            key("logging_*", why=EVERY_STEP),
            key("log_level*", why="planner has its own messages"),
            key("dataloader_*", why="planner has its own data loader"),
            key("ddp_*", why="planner shards by FSDP2"),
            key("fsdp*", why="planner configures FSDP2 itself"),
            key("deepspeed*", why="planner shards by FSDP2"),
        ),
    )
)
ACCELERATOR_CONFIG = Rules(
    (
        *about(
            "what makes the batch",
            key("split_batches", effect=reads("m is that of all GPUs, and GPUs must divide it")),
            key(
                "even_batches",
                value="truth",
                effect=says("the batch stays, and the first rows of an epoch are visited twice"),
            ),
            key("gradient_accumulation_kwargs", effect=reads("num_steps replaces A")),
            key(
                "use_configured_state",
                effect=refuses("It takes a state that the script made before: write false", False),
            ),
        ),
        *about(
            "which process reads rows, and how",
            keys("dispatch_batches use_seedable_sampler non_blocking"),
        ),
    )
)
GRADIENT_ACCUMULATION = Rules(
    (
        *about(
            "what makes the batch",
            key("num_steps", effect=reads("A, if gradient_accumulation_steps is 1. Otherwise the Trainer refuses")),
        ),
        *about(
            "when gradients are sent. The Trainer counts steps itself",
            keys("adjust_scheduler sync_with_dataloader sync_each_batch"),
        ),
    )
)
PARALLELISM_CONFIG = Rules(
    (
        *about(
            "what makes the batch",
            key("dp_replicate_size", effect=reads("it times dp_shard_size must be the number of processes")),
            key("dp_shard_size", effect=reads("it times dp_replicate_size must be the number of processes")),
            key("tp_size", effect=refuses(SHARED, 1)),
            key("cp_size", effect=refuses(SHARED, 1)),
            key("sp_size", effect=refuses(SHARED, 1)),
        ),
        *about(
            "how the sizes are used",
            keys("cp_backend sp_backend tp_handler cp_handler sp_handler"),
        ),
    )
)
FSDP_PLUGIN = Rules(
    (
        *about(
            "what makes the batch",
            key("xla", effect=refuses("planner does not know the batch of torch_xla's devices: remove it", False)),
            key(
                "xla_fsdp_v2",
                effect=refuses("planner does not know the batch of torch_xla's devices: remove it", False),
            ),
        ),
        *about(
            "where weights and gradients are",
            keys("""
            fsdp_version sharding_strategy reshard_after_forward backward_prefetch
            mixed_precision_policy auto_wrap_policy cpu_offload ignored_modules state_dict_type
            state_dict_config optim_state_dict_config limit_all_gathers use_orig_params
            param_init_fn sync_module_states forward_prefetch activation_checkpointing
            activation_checkpointing_offload cpu_ram_efficient_loading transformer_cls_names_to_wrap
            min_num_params"""),
        ),
    )
)
DEEPSPEED = Rules(
    about(
        "what makes the batch",
        key("train_batch_size", effect=reads("must be auto, or m x A x GPUs")),
        key("train_micro_batch_size_per_gpu", effect=reads("must be auto, or m")),
        key("gradient_accumulation_steps", effect=reads("must be auto, or A")),
        key(
            "elasticity.enabled", effect=refuses("DeepSpeed's elasticity chooses other batch sizes: write false", False)
        ),
        key(
            "autotuning.enabled", effect=refuses("DeepSpeed's autotuning chooses other batch sizes: write false", False)
        ),
        key("tensor_parallel.autotp_size", effect=refuses(SHARED, 0, 1)),
        key("sequence_parallel_size", effect=refuses(SHARED, 1)),
    )
)
MODEL_INIT_KWARGS = Rules(
    about(
        "what makes the batch",
        key("tp_plan", effect=refuses(_SPREAD)),
        key("tp_size", effect=refuses(_SPREAD, 1)),
        key("device_mesh", effect=refuses(_SPREAD)),
        key("distributed_config", effect=refuses(_SPREAD)),
        key("device_map", effect=refuses(_SPREAD)),
    )
)

ENV = Rules(
    about(
        "what makes the batch",
        keys(
            """
        WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE ACCELERATE_USE_DEEPSPEED ACCELERATE_USE_FSDP
        ACCELERATE_DEEPSPEED_CONFIG_FILE ACCELERATE_GRADIENT_ACCUMULATION_STEPS
        ACCELERATE_USE_MEGATRON_LM ACCELERATE_USE_SAGEMAKER ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE
        ACCELERATE_USE_PARALLELISM_CONFIG PARALLELISM_CONFIG_DP_REPLICATE_SIZE
        PARALLELISM_CONFIG_DP_SHARD_SIZE PARALLELISM_CONFIG_TP_SIZE PARALLELISM_CONFIG_CP_SIZE
        PARALLELISM_CONFIG_SP_SIZE SM_HP_MP_PARAMETERS""",
            effect=refuses("The accelerate file or the command sets it before the script starts: write it there"),
        ),
    )
)
"""variables in a recipe's own section `env`, which TRL sets when the script has started already"""

# The prefix of a recipe's key -> its section. The first prefix that fits counts.
SECTIONS: Mapping[str, Rules] = {
    "accelerator_config.gradient_accumulation_kwargs.": GRADIENT_ACCUMULATION,
    "accelerator_config.": ACCELERATOR_CONFIG,
    "parallelism_config.": PARALLELISM_CONFIG,
    "fsdp_config.": FSDP_PLUGIN,
    "deepspeed.": DEEPSPEED,
    "model_init_kwargs.": MODEL_INIT_KWARGS,
    "env.": ENV,
}
CLOSED = {
    "accelerator_config.gradient_accumulation_kwargs.": "GradientAccumulationPlugin",
    "accelerator_config.": "AcceleratorConfig",
}
"""the class of each section in which transformers refuses a name that is not here"""


def section_of(name: str) -> tuple[str, str]:
    """The prefix of a dotted key's section and its name there, the prefix empty for an argument of the Trainer.

    accelerate's own files repeat the section in the name: `parallelism_config.parallelism_config_tp_size`.
    """
    for prefix in SECTIONS:
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix).removeprefix(f"{prefix[:-1]}_")
    return "", name


def effect_of(name: str, rules: Rules) -> Effect | None:
    """What a dotted key does to the batch. None if it cannot change it, or if no row has its name.

    `rules` are the rows of the system whose recipe has the key.
    """
    prefix, inner = section_of(name)
    found = (SECTIONS[prefix] if prefix else rules).exact(inner)
    return found.effect if found else None
