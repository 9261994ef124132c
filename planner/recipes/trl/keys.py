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
                effect=says("some losses depend on the micro-batch, and KTO needs m of 2 or more"),
            ),
            key(
                "num_generations",
                value="whole",
                default=8,
                effect=reads("GRPO refuses counts that cut a group"),
                unset="free",
            ),
            key("num_generations_eval", value="whole", effect=reads("GRPO refuses counts that cut a group")),
            key("generation_batch_size", effect=reads("GRPO refuses counts that do not divide it")),
            key("steps_per_generation", effect=reads("GRPO refuses counts that cut a group")),
            key(
                "model_init_kwargs",
                effect=reads("tp_plan and device_map let GPUs share a micro-batch"),
                unset="decides",
            ),
        ),
        *about(
            "the data",
            key("dataset_name", ours="data.path", unset="job"),
            key("dataset_config", ours="data.config", unset="job"),
            key("dataset_train_split", ours="data.split", default="train", unset="job"),
            key(
                "dataset_test_split",
                ours="eval.data.split",
                default="test",
                why="the recipe does not evaluate it (eval_strategy)",
            ),
            key("dataset_streaming", why=_READ_FIRST, stands_alone=True),
            key("dataset_mixture", ours="data.mixture"),
            key("datasets", ours="data.mixture"),
            key(
                "test_split_size",
                ours="eval.samples",
                why="it holds rows out of the data sets in datasets, and the recipe has none",
            ),
            key("streaming", why=_READ_FIRST),
            key("dataset_text_field", ours="data.columns"),
            key("dataset_num_proc", why="planner reads the data once"),
            keys("dataset_kwargs dataset_batch_size num_of_sequences chars_per_token"),
            keys("shuffle_dataset", is_true=True),
        ),
        *about(
            "the model and its adapters",
            key("model_name_or_path", ours="model.path", value="text", unset="free"),
            key("model_revision", ours="model.revision", value="text", unset="job"),
            key("torch_dtype", why=_FP32, is_old=True),
            key("dtype", why=_FP32),
            key("trust_remote_code", why="planner runs no code of a model's repository", stands_alone=True),
            key("attn_implementation", ours="model.attention"),
            key("use_peft", ours="model.lora", value="truth"),
            key("lora_r", ours="model.lora.rank", value="whole", default=16, unset="job"),
            key("lora_alpha", ours="model.lora.alpha", value="number", default=32.0, unset="job"),
            key("lora_dropout", ours="model.lora.dropout", value="number", default=0.05, unset="job"),
            key("lora_target_modules", ours="model.lora.targets", unset="job"),
            key("use_rslora", ours="model.lora.alpha", value="truth"),
            key("use_dora", value="truth"),
            key("load_in_8bit", ours="model.frozen", value="truth"),
            key("load_in_4bit", ours="model.frozen", value="truth"),
            key("force_use_ref_model", value="truth"),
            keys("""
            lora_target_parameters lora_modules_to_save lora_task_type bnb_4bit_quant_type
            bnb_4bit_quant_storage bnb_4bit_compute_dtype use_liger tokenizer_name_or_path
            ref_model_init_kwargs model_adapter_name ref_adapter_name base_model_attribute_name
            router_aux_loss_coef is_encoder_decoder"""),
            keys("use_bnb_nested_quant cast_lm_head_to_fp32", stands_alone=True),
        ),
        *about(
            "prompts, tokens and lengths",
            key("chat_template", ours="model.chat_template", unset="job"),
            key("chat_template_path", ours="model.chat_template", unset="job"),
            key("max_length", ours="model.context", value="whole", least=2, default=1024, unset="job"),
            key("max_seq_length", ours="model.context", value="whole", least=2, default=1024, unset="job", is_old=True),
            key("max_prompt_length", ours="data.max_prompt", value="whole", unset="job", is_old=True),
            key("truncation_mode", ours="data.cut_prompt", value="text"),
            key("packing_strategy", unset="decides", why="planner packs in the same way (bfd)"),
            key("padding_free", ours="batch.max_tokens", value="truth"),
            key("completion_only_loss", ours="data.loss_on", value="truth"),
            key("assistant_only_loss", ours="data.loss_on", value="truth"),
            keys("""
            system_prompt chat_template_kwargs eos_token pad_token bos_token tools
            max_completion_length pad_to_multiple_of eval_packing padding_value label_pad_token_id"""),
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
            key("beta", ours="objective.beta", value="number", default=0.1, unset="job"),
            key("reference_free", ours="objective.reference", value="truth"),
            key("label_smoothing", ours="objective.label_smoothing", value="number", default=0.0),
            key("use_weighting", value="truth"),
            key("sync_ref_model", value="truth"),
            key("desirable_weight", ours="objective.desirable_weight", value="number", default=1.0),
            key("undesirable_weight", ours="objective.undesirable_weight", value="number", default=1.0),
            keys("disable_dropout scale_rewards use_bias_correction_kl", is_true=True),
            keys("""
            use_logits_to_keep precompute_ref_batch_size use_liger_loss liger_loss f_divergence_type
            f_alpha_divergence_coef rpo_alpha ld_alpha discopop_tau loss_weights
            ref_model_mixup_alpha ref_model_sync_steps rpo_weight simpo_gamma cpo_alpha alpha
            reward_weights reward_funcs reward_model_name_or_path epsilon delta epsilon_high
            importance_sampling_level top_entropy_quantile num_iterations entropy_coef
            entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
            multi_objective_aggregation off_policy_mask_threshold sapo_temperature_neg
            sapo_temperature_pos vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos"""),
            keys("mask_truncated_completions use_adaptive_entropy", stands_alone=True),
        ),
        *about(
            "generation",
            keys("""
            generate_during_eval temperature top_p top_k min_p repetition_penalty
            cache_implementation vllm_server_base_url vllm_mode vllm_model_impl
            vllm_guided_decoding_regex vllm_server_host vllm_server_port vllm_server_timeout
            vllm_gpu_memory_utilization vllm_tensor_parallel_size generation_kwargs
            max_tool_calling_iterations transformers_continuous_batching_config vllm_group_port
            vllm_importance_sampling_cap vllm_importance_sampling_clip_max
            vllm_importance_sampling_clip_min vllm_importance_sampling_mode vllm_max_model_length
            vllm_structured_outputs_regex"""),
            keys("ds3_gather_for_generation vllm_importance_sampling_correction", is_true=True),
            keys(
                """
            use_transformers_paged use_vllm use_transformers_continuous_batching
            vllm_enable_sleep_mode""",
                stands_alone=True,
            ),
        ),
        *about(
            "memory, logging and callbacks",
            key("wandb_entity", ours="tracking", value="words"),
            key("logging_steps", default=10.0),
            key("wandb_project", ours="tracking", value="words"),
            key("wandb_run_group", ours="tracking", value="words"),
            keys("""
            gradient_checkpointing_use_reentrant benchmarks callbacks wandb_log_unique_prompts
            num_completions_to_print log_completions_hub_repo"""),
            keys("ignore_bias_buffers activation_offloading log_completions log_unique_prompts", stands_alone=True),
            keys("log_multimodal", is_true=True),
        ),
        *about(
            "keys of TRL 0.7 to 0.18 that newer versions dropped. None of them decides the loss or the batch",
            keys(
                """
            max_target_length use_num_logits_to_keep vllm_device vllm_dtype vllm_max_model_len
            vllm_enable_prefix_caching""",
                is_old=True,
            ),
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
        key("dataset_mixer", ours="data.mixture"),
        keys("dataset_splits dataset_configs"),
        key("preprocessing_num_workers", why="planner reads the data once"),
        key("use_flash_attention_2", why="attn_implementation replaces it"),
        key("text_column", why="only continued pretraining reads it"),
        key("truncation_side", why="data.cut_prompt sets it"),
        key(
            "auto_insert_empty_system_msg",
            why="the model's chat template decides what comes before the first turn",
            is_true=True,
        ),
        key("base_model_revision", why="it is the model under an adapter, for which planner has only model.revision"),
        key("model_code_revision", why="planner runs no code of a model's repository"),
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
