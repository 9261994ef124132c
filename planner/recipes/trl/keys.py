"""The keys that TRL's scripts take beyond the Trainer's (TRL 0.19 to 1.16), and those of the alignment-handbook."""

from planner.recipes.rule import Rules, about, key, keys, reads, says
from planner.recipes.trainer.keys import TRACKING, TRAINING_ARGUMENTS

ENVIRONMENT = "env"
"""the section of TRL's configuration files (TrlParser) with environment variables"""
_READ_FIRST = "planner reads all rows of a set before the first step"
_FP32 = "planner's trained weights are fp32, its passes in train.precision"

_OWN = Rules(
    (
        *about(
            "what makes the batch",
            key("packing", ours="data.packing", value="truth", effect=says("the unit is a packed row")),
            key(
                "loss_type",
                ours="objective.kind",
                of_loss=True,
                effect=says("some losses depend on the micro-batch, and KTO needs m of 2 or more"),
            ),
            key(
                "num_generations",
                value="whole",
                default=8,
                effect=reads("GRPO refuses counts that cut a group"),
                unset="free",
                of_loss=True,
            ),
            key("num_generations_eval", value="whole", effect=reads("GRPO refuses counts that cut a group")),
            key("generation_batch_size", value="whole", effect=reads("GRPO refuses counts that do not divide it")),
            key("steps_per_generation", value="whole", effect=reads("GRPO refuses counts that cut a group")),
            key(
                "model_init_kwargs",
                value="tree",
                effect=reads("tp_plan and device_map let GPUs share a micro-batch"),
                unset="decides",
            ),
        ),
        *about(
            "the data",
            key("dataset_name", value="scalar", ours="data.path", unset="job"),
            key("dataset_config", value="scalar", ours="data.config", unset="job"),
            key("dataset_train_split", value="scalar", ours="data.split", default="train", unset="job"),
            key(
                "dataset_test_split",
                value="scalar",
                ours="eval.data.split",
                default="test",
                why="the recipe does not evaluate it (eval_strategy)",
            ),
            key("dataset_streaming", value="truth", why=_READ_FIRST, stands_alone=True),
            key("dataset_mixture", value="tree", ours="data.mixture"),
            key("datasets", ours="data.mixture"),
            key(
                "test_split_size",
                value="real",
                ours="eval.samples",
                why="it holds rows out of the data sets in datasets, and the recipe has none",
            ),
            key("streaming", value="truth", why=_READ_FIRST),
            key("dataset_text_field", value="scalar", ours="data.columns"),
            key("dataset_num_proc", value="real", why="planner reads the data once"),
            key("dataset_kwargs", value="tree"),
            keys("dataset_batch_size num_of_sequences chars_per_token", value="real"),
            key("shuffle_dataset", value="truth", is_true=True),
        ),
        *about(
            "the model and its adapters",
            key("model_name_or_path", ours="model.path", value="text", unset="free"),
            key("model_revision", ours="model.revision", value="text", unset="job"),
            key("torch_dtype", value="scalar", why=_FP32, is_old=True),
            key("dtype", value="scalar", why=_FP32),
            key(
                "trust_remote_code",
                value="truth",
                why="planner runs no code of a model's repository",
                stands_alone=True,
            ),
            key("attn_implementation", value="scalar", ours="model.attention"),
            key("use_peft", ours="model.lora", value="truth"),
            key("lora_r", ours="model.lora.rank", value="whole", default=16, unset="job"),
            key("lora_alpha", ours="model.lora.alpha", value="number", default=32.0, unset="job"),
            key("lora_dropout", ours="model.lora.dropout", value="number", default=0.05, unset="job"),
            key("lora_target_modules", ours="model.lora.targets", unset="job"),
            key("use_rslora", ours="model.lora.alpha", value="truth"),
            key("use_dora", value="truth"),
            key("load_in_8bit", ours="model.frozen", value="truth"),
            key("load_in_4bit", ours="model.frozen", value="truth"),
            key("force_use_ref_model", value="truth", alters=(False,)),
            keys("lora_target_parameters lora_modules_to_save"),
            key("ref_model_init_kwargs", value="tree"),
            keys(
                """
            lora_task_type bnb_4bit_quant_type bnb_4bit_quant_storage bnb_4bit_compute_dtype
            tokenizer_name_or_path model_adapter_name ref_adapter_name base_model_attribute_name""",
                value="scalar",
            ),
            keys("use_liger is_encoder_decoder", value="truth"),
            key("router_aux_loss_coef", value="real"),
            keys("use_bnb_nested_quant cast_lm_head_to_fp32", value="truth", stands_alone=True),
        ),
        *about(
            "prompts, tokens and lengths",
            key("chat_template", value="scalar", ours="model.chat_template", unset="job"),
            key("chat_template_path", value="scalar", ours="model.chat_template", unset="job"),
            key("max_length", ours="model.context", value="whole", least=2, default=1024, unset="job"),
            key("max_seq_length", ours="model.context", value="whole", least=2, default=1024, unset="job", is_old=True),
            key("max_prompt_length", ours="data.max_prompt", value="whole", unset="job", is_old=True),
            key("truncation_mode", ours="data.cut_prompt", value="scalar"),
            key("packing_strategy", value="scalar", unset="decides", why="planner packs in the same way (bfd)"),
            key("padding_free", ours="batch.max_tokens", value="truth"),
            key("completion_only_loss", ours="data.loss_on", value="truth"),
            key("assistant_only_loss", ours="data.loss_on", value="truth"),
            keys("system_prompt eos_token pad_token bos_token", value="scalar"),
            key("chat_template_kwargs", value="tree"),
            key("tools"),
            keys(
                """
            max_completion_length pad_to_multiple_of padding_value label_pad_token_id""",
                value="real",
            ),
            key("eval_packing", value="truth"),
        ),
        *about(
            "keys of the Trainer's with defaults of TRL's own",
            key(
                "learning_rate",
                ours="train.optimizer.lr",
                value="number",
                default={"sft": 2e-5, "": 1e-6},
                unset="free",
            ),
            key(
                "bf16",
                ours="train.precision",
                value="truth",
                default=True,
                note="its default is true in TRL 0.19 to 1.16 (false in older ones)",
            ),
            key(
                "gradient_checkpointing",
                ours="train.activation_checkpointing",
                value="truth",
                is_true=True,
                note="false in TRL 0.19, true in 1.16",
            ),
        ),
        *about(
            "the loss",
            key("precompute_ref_log_probs", ours="objective.reference", value="truth"),
            key("beta", ours="objective.beta", value="number", default=0.1, unset="job", of_loss=True),
            key("reference_free", ours="objective.reference", value="truth", of_loss=True),
            key("label_smoothing", ours="objective.label_smoothing", value="number", default=0.0, of_loss=True),
            keys("use_weighting sync_ref_model", value="truth", alters=(False,)),
            key("desirable_weight", ours="objective.desirable_weight", value="number", default=1.0, of_loss=True),
            key("undesirable_weight", ours="objective.undesirable_weight", value="number", default=1.0, of_loss=True),
            keys("disable_dropout use_bias_correction_kl", value="truth", is_true=True),
            key("scale_rewards", is_true=True, of_loss=True),
            keys("use_logits_to_keep use_liger_loss liger_loss", value="truth"),
            key("rpo_alpha", value="real", alters=()),
            key("ld_alpha", value="real", alters=(1,)),
            keys(
                """
            discopop_tau f_alpha_divergence_coef ref_model_mixup_alpha ref_model_sync_steps epsilon epsilon_high
            delta num_iterations""",
                value="real",
                of_loss=True,
            ),
            keys(
                """
            precompute_ref_batch_size rpo_weight simpo_gamma cpo_alpha alpha top_entropy_quantile entropy_coef
            entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
            off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos vespo_k_neg
            vespo_k_pos vespo_lambda_neg vespo_lambda_pos""",
                value="real",
            ),
            key(
                "f_divergence_type",
                choices=("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence", None),
                alters=("reverse_kl",),
            ),
            keys(
                """
            reward_model_name_or_path importance_sampling_level
            multi_objective_aggregation""",
                value="scalar",
            ),
            key("loss_weights", alters=([1], [1.0])),
            key("reward_weights", of_loss=True),
            key("reward_funcs"),
            keys("mask_truncated_completions use_adaptive_entropy", value="truth", stands_alone=True),
        ),
        *about(
            "generation",
            key("generate_during_eval", value="truth"),
            key("temperature", value="real", of_loss=True),
            keys(
                """
            top_p top_k min_p repetition_penalty vllm_server_port vllm_server_timeout
            vllm_gpu_memory_utilization vllm_tensor_parallel_size max_tool_calling_iterations
            vllm_group_port vllm_importance_sampling_cap vllm_importance_sampling_clip_max
            vllm_importance_sampling_clip_min vllm_max_model_length""",
                value="real",
            ),
            keys(
                """
            cache_implementation vllm_server_base_url vllm_mode vllm_model_impl
            vllm_guided_decoding_regex vllm_server_host vllm_importance_sampling_mode
            vllm_structured_outputs_regex""",
                value="scalar",
            ),
            keys("generation_kwargs transformers_continuous_batching_config", value="tree"),
            keys("ds3_gather_for_generation vllm_importance_sampling_correction", value="truth", is_true=True),
            keys(
                """
            use_transformers_paged use_vllm use_transformers_continuous_batching
            vllm_enable_sleep_mode""",
                value="truth",
                stands_alone=True,
            ),
        ),
        *about(
            "memory, logging and callbacks",
            key("wandb_entity", ours="tracking", value="words"),
            key("logging_steps", value="real", default=10.0),
            key("wandb_project", ours="tracking", value="words"),
            key("wandb_run_group", ours="tracking", value="words"),
            keys("gradient_checkpointing_use_reentrant wandb_log_unique_prompts", value="truth"),
            keys("benchmarks callbacks"),
            key("num_completions_to_print", value="real"),
            key("log_completions_hub_repo", value="scalar"),
            keys(
                """
            ignore_bias_buffers activation_offloading log_completions log_unique_prompts""",
                value="truth",
                stands_alone=True,
            ),
            key("log_multimodal", value="truth", is_true=True),
        ),
        *about(
            "keys of TRL 0.7 to 0.18 that newer versions dropped. None of them decides the loss or the batch",
            key("max_target_length", value="real", is_old=True),
            key("use_num_logits_to_keep", value="truth", is_old=True),
            keys("vllm_device vllm_dtype", value="scalar", is_old=True),
            key("vllm_max_model_len", value="real", is_old=True),
            key("vllm_enable_prefix_caching", value="truth", is_old=True),
        ),
        *about(
            "keys by their beginning",
            key("wandb_*", why=TRACKING),
            key("trackio_*", why="planner's trackio tracker has no such setting"),
            key("bnb_*", why="planner packs 4-bit weights itself, and computes in the type of train.precision"),
            key("vllm_*", why="your loop generates"),
            key(f"{ENVIRONMENT}.*", why="an environment variable: set it where the workers start"),
        ),
    )
)
HANDBOOK = Rules(
    about(
        "the alignment-handbook's scripts up to v0.3, whose keys TRL's scripts refuse",
        key("dataset_mixer", value="tree", ours="data.mixture"),
        keys("dataset_splits dataset_configs", value="tree"),
        key("preprocessing_num_workers", value="real", why="planner reads the data once"),
        key("use_flash_attention_2", value="truth", why="attn_implementation replaces it"),
        key("text_column", value="scalar", why="only continued pretraining reads it"),
        key("truncation_side", value="scalar", why="data.cut_prompt sets it"),
        key(
            "auto_insert_empty_system_msg",
            value="truth",
            why="the model's chat template decides what comes before the first turn",
            is_true=True,
        ),
        key(
            "base_model_revision",
            value="scalar",
            why="it is the model under an adapter, for which planner has only model.revision",
        ),
        key("model_code_revision", value="scalar", why="planner runs no code of a model's repository"),
    )
)
"""(src/alignment/configs.py)"""
RULES = TRAINING_ARGUMENTS | _OWN | HANDBOOK
"""all keys that TRL's or the handbook's scripts take. TRL refuses any other"""
KNOWN = RULES.names
OLDER_HANDBOOK = HANDBOOK.names
METHODS = ("sft", "dpo", "orpo", "kto", "grpo")
"""the methods of TRL's scripts that planner reads"""
VERSIONS = "in TRL 0.19 to 1.16"
TRUE_BY_DEFAULT = frozenset(RULES.of(is_true=True))
"""transformers' HfArgumentParser has --no_NAME only for these"""
ALONE = frozenset(row.name for row in RULES if row.stands_alone or row.is_true or row.value == "truth")
"""options that may stand without a value on a command line"""
