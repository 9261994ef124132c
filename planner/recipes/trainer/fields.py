"""What reaches the Trainer's global batch: every field, key, option and variable, and what it does to the batch.

The names are those of transformers 4.53 to 5.23, accelerate 1.15, TRL 0.19 to 1.16 and DeepSpeed's file. A test
compares them with the installed packages. The module holds data alone and knows no recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_SHARED = "Those GPUs share a micro-batch: remove it, and write the count of data-parallel GPUs"
_SPREAD = "It spreads the model over GPUs, which then share a micro-batch: remove it, and count data-parallel GPUs"
_FROM_PYTHON = "transformers takes it from Python alone: remove it, and write its sizes in the accelerate file"
_LAUNCHER = "The accelerate file or the command sets it before the script starts: write it there"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a field does to the batch, and what planner does about it."""

    planner: Literal["reads", "refuses", "says"]
    """reads computes with it, refuses takes only `plain`, says shows it in a trap or as the unit"""
    how: str
    """what it does to the batch. For `refuses` it is the second sentence of the error, with what to do"""
    plain: tuple[Any, ...] = (None,)
    """the values that change nothing, for `refuses`"""


def _reads(how: str) -> Effect:
    return Effect(planner="reads", how=how)


def _says(how: str) -> Effect:
    return Effect(planner="says", how=how)


def _refuses(how: str, *plain: Any) -> Effect:
    return Effect(planner="refuses", how=how, plain=(None, *plain))


# section -> name -> what it does to the batch.
CAN: Mapping[str, Mapping[str, Effect]] = {
    "TrainingArguments": {
        "per_device_train_batch_size": _reads("m, of one process"),
        "gradient_accumulation_steps": _reads("A, the micro-batches of an optimizer step"),
        "accelerator_config": _reads("split_batches makes m that of all GPUs, num_steps replaces A"),
        "deepspeed": _reads("its three sizes must be auto, or equal the Trainer's"),
        "auto_find_batch_size": _refuses(
            "The Trainer lowers per_device_train_batch_size after an out-of-memory error and keeps "
            "gradient_accumulation_steps, so no global batch is fixed: write false, and the size that fitted",
            False,
        ),
        "parallelism_config": _refuses(_FROM_PYTHON),
        "mp_parameters": _refuses("SageMaker's model parallelism shares a micro-batch between GPUs: remove it", ""),
        "resume_from_checkpoint": _says("transformers 4 takes m from the checkpoint"),
        "fsdp_config": _reads("xla with SPMD makes all devices one process"),
    },
    "AcceleratorConfig": {
        "split_batches": _reads("m is that of all GPUs, and GPUs must divide it"),
        "even_batches": _says("the batch stays, and the first rows of an epoch are visited twice"),
        "gradient_accumulation_kwargs": _reads("num_steps replaces A"),
        "use_configured_state": _refuses("It takes a state that the script made before: write false", False),
    },
    "GradientAccumulationPlugin": {
        "num_steps": _reads("A, if gradient_accumulation_steps is 1. Otherwise the Trainer refuses"),
    },
    "ParallelismConfig": {
        "dp_replicate_size": _reads("it times dp_shard_size must be the number of processes"),
        "dp_shard_size": _reads("it times dp_replicate_size must be the number of processes"),
        "tp_size": _refuses(_SHARED, 1),
        "cp_size": _refuses(_SHARED, 1),
        "sp_size": _refuses(_SHARED, 1),
    },
    "FullyShardedDataParallelPlugin": {
        "xla": _refuses("planner does not know the batch of torch_xla's devices: remove it", False),
        "xla_fsdp_v2": _refuses("planner does not know the batch of torch_xla's devices: remove it", False),
    },
    "DeepSpeed": {
        "train_batch_size": _reads("must be auto, or m x A x GPUs"),
        "train_micro_batch_size_per_gpu": _reads("must be auto, or m"),
        "gradient_accumulation_steps": _reads("must be auto, or A"),
        "elasticity.enabled": _refuses("DeepSpeed's elasticity chooses other batch sizes: write false", False),
        "autotuning.enabled": _refuses("DeepSpeed's autotuning chooses other batch sizes: write false", False),
        "tensor_parallel.autotp_size": _refuses(_SHARED, 0, 1),
        "sequence_parallel_size": _refuses(_SHARED, 1),
    },
    "model_init_kwargs": {
        "tp_plan": _refuses(_SPREAD),
        "tp_size": _refuses(_SPREAD, 1),
        "device_mesh": _refuses(_SPREAD),
        "distributed_config": _refuses(_SPREAD),
        "device_map": _refuses(_SPREAD),
    },
    "TRL": {
        "packing": _says("the unit is a packed row"),
        "loss_type": _says("some losses depend on the micro-batch, and KTO needs m of 2 or more"),
        "num_generations": _reads("GRPO refuses counts that cut a group"),
        "num_generations_eval": _reads("GRPO refuses counts that cut a group"),
        "generation_batch_size": _reads("GRPO refuses counts that do not divide it"),
        "steps_per_generation": _reads("GRPO refuses counts that cut a group"),
        "model_init_kwargs": _reads("tp_plan and device_map let GPUs share a micro-batch"),
    },
    "accelerate launch": {
        "num_processes": _reads("W on all machines"),
        "config_file": _reads("the accelerate file"),
        "gradient_accumulation_steps": _reads("DeepSpeed's A, which must equal the Trainer's"),
        "deepspeed_config_file": _reads("its three sizes must be auto, or equal the Trainer's"),
        "use_deepspeed": _reads("whether DeepSpeed checks its sizes"),
        "use_fsdp": _reads("how gradients are sharded"),
        "num_machines": _says("num_processes counts all of them"),
        "use_megatron_lm": _refuses("Megatron-LM has batch sizes of its own: remove it", False),
        "parallelism_config_dp_replicate_size": _reads("it times dp_shard_size must be the number of processes"),
        "parallelism_config_dp_shard_size": _reads("it times dp_replicate_size must be the number of processes"),
        "parallelism_config_tp_size": _refuses(_SHARED, 1),
        "parallelism_config_cp_size": _refuses(_SHARED, 1),
        "parallelism_config_sp_size": _refuses(_SHARED, 1),
        # of the launchers torchrun and deepspeed
        "nproc_per_node": _reads("W of one machine"),
        "nnodes": _reads("the number of machines"),
        "num_gpus": _reads("W of one machine"),
        "num_nodes": _reads("the number of machines"),
        "autotuning": _refuses("DeepSpeed's autotuning chooses other batch sizes: remove it"),
        "elastic_training": _refuses("DeepSpeed's elasticity chooses other batch sizes: remove it", False),
    },
    "variables": {
        "WORLD_SIZE": _reads("W of a script that no launcher starts"),
        "ACCELERATE_USE_DEEPSPEED": _reads("whether DeepSpeed checks its sizes"),
        "ACCELERATE_USE_FSDP": _reads("how gradients are sharded"),
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": _reads("its three sizes must be auto, or equal the Trainer's"),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": _reads("DeepSpeed's A, which must equal the Trainer's"),
        "ACCELERATE_USE_PARALLELISM_CONFIG": _reads("whether PARALLELISM_CONFIG_* has an effect"),
        "ACCELERATE_USE_MEGATRON_LM": _refuses("Megatron-LM has batch sizes of its own: remove it", False),
        "ACCELERATE_USE_SAGEMAKER": _refuses("planner does not know how SageMaker starts processes: remove it", False),
        "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": _refuses(
            "planner does not know how SageMaker starts processes: remove it", "no"
        ),
        "SM_HP_MP_PARAMETERS": _refuses("SageMaker's model parallelism shares a micro-batch: remove it"),
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": _reads("it times DP_SHARD_SIZE must be the number of processes"),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": _reads("it times DP_REPLICATE_SIZE must be the number of processes"),
        "PARALLELISM_CONFIG_TP_SIZE": _refuses(_SHARED, 1),
        "PARALLELISM_CONFIG_CP_SIZE": _refuses(_SHARED, 1),
        "PARALLELISM_CONFIG_SP_SIZE": _refuses(_SHARED, 1),
    },
    # of a recipe's own section `env`, which TRL sets when the script has started already
    "env": {
        name: _refuses(_LAUNCHER)
        for name in (
            "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
            "ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_USE_MEGATRON_LM",
            "ACCELERATE_USE_SAGEMAKER", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "ACCELERATE_USE_PARALLELISM_CONFIG",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "PARALLELISM_CONFIG_TP_SIZE",
            "PARALLELISM_CONFIG_CP_SIZE", "PARALLELISM_CONFIG_SP_SIZE", "SM_HP_MP_PARAMETERS",
        )
    },
}  # fmt: skip

# section -> what the names concern -> names that cannot change the batch.
CANNOT: Mapping[str, Mapping[str, str]] = {
    "TrainingArguments": {
        "the optimizer and its schedule": """
            learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_type
            lr_scheduler_kwargs warmup_ratio warmup_steps optim optim_args optim_target_modules adafactor
            label_smoothing_factor neftune_noise_alpha average_tokens_across_devices""",
        "the length of the run": "num_train_epochs max_steps do_train do_predict",
        "evaluation": """
            do_eval eval_strategy evaluation_strategy eval_delay eval_steps eval_on_start eval_accumulation_steps
            per_device_eval_batch_size prediction_loss_only batch_eval_metrics eval_do_concat_batches
            eval_use_gather_object include_for_metrics include_inputs_for_metrics load_best_model_at_end
            metric_for_best_model greater_is_better label_names past_index use_legacy_prediction_loop jit_mode_eval""",
        "logging, saving and the hub": """
            output_dir overwrite_output_dir run_name logging_dir logging_strategy logging_first_step logging_steps
            logging_nan_inf_filter log_level log_level_replica log_on_each_node report_to disable_tqdm save_strategy
            save_steps save_total_limit save_safetensors save_on_each_node save_only_model enable_jit_checkpoint
            restore_callback_states_from_checkpoint push_to_hub hub_model_id hub_strategy hub_token hub_private_repo
            hub_always_push hub_revision project trackio_space_id trackio_bucket_id trackio_static_space_id
            include_tokens_per_second include_num_input_tokens_seen skip_memory_metrics ray_scope""",
        "precision, memory and speed": """
            bf16 fp16 fp16_opt_level fp16_backend half_precision_backend bf16_full_eval fp16_full_eval tf32
            gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing
            activation_checkpointing_kwargs
            torch_compile torch_compile_backend torch_compile_mode torchdynamo torch_empty_cache_steps use_liger_kernel
            liger_kernel_config use_cache use_ipex""",
        "devices and processes, of which planner takes the count": """
            use_cpu no_cuda use_mps_device local_rank tpu_num_cores tpu_metrics_debug debug ddp_backend ddp_timeout
            ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph fsdp fsdp_min_num_params
            fsdp_transformer_layer_cls_to_wrap""",
        "which rows come when, not how many": """
            seed data_seed full_determinism group_by_length length_column_name train_sampling_strategy ignore_data_skip
            dataloader_drop_last dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory
            dataloader_persistent_workers dataloader_in_order dataloader_multiprocessing_context
            remove_unused_columns""",
    },
    "AcceleratorConfig": {"which process reads rows, and how": "dispatch_batches use_seedable_sampler non_blocking"},
    "GradientAccumulationPlugin": {
        "when gradients are sent. The Trainer counts steps itself": "adjust_scheduler sync_with_dataloader "
        "sync_each_batch",
    },
    "ParallelismConfig": {"how the sizes are used": "cp_backend sp_backend tp_handler cp_handler sp_handler"},
    "FullyShardedDataParallelPlugin": {
        "where weights and gradients are": """
            fsdp_version sharding_strategy reshard_after_forward backward_prefetch mixed_precision_policy
            auto_wrap_policy cpu_offload ignored_modules state_dict_type state_dict_config optim_state_dict_config
            limit_all_gathers use_orig_params param_init_fn sync_module_states forward_prefetch activation_checkpointing
            activation_checkpointing_offload cpu_ram_efficient_loading transformer_cls_names_to_wrap min_num_params""",
    },
    "DeepSpeed": {},
    "model_init_kwargs": {},
    "TRL": {
        "the data": """
            dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming dataset_mixture
            datasets test_split_size streaming dataset_text_field dataset_kwargs dataset_num_proc dataset_batch_size
            num_of_sequences chars_per_token shuffle_dataset""",
        "the model and its adapters": """
            model_name_or_path model_revision torch_dtype dtype trust_remote_code attn_implementation use_peft lora_r
            lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type
            use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant
            bnb_4bit_quant_storage bnb_4bit_compute_dtype use_liger tokenizer_name_or_path ref_model_init_kwargs
            model_adapter_name ref_adapter_name force_use_ref_model base_model_attribute_name router_aux_loss_coef
            cast_lm_head_to_fp32 is_encoder_decoder""",
        "prompts, tokens and lengths": """
            system_prompt chat_template chat_template_path chat_template_kwargs eos_token pad_token bos_token tools
            max_length max_seq_length max_prompt_length max_completion_length truncation_mode packing_strategy
            padding_free pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss padding_value
            label_pad_token_id""",
        "the loss": """
            disable_dropout use_logits_to_keep precompute_ref_log_probs precompute_ref_batch_size use_liger_loss
            liger_loss beta f_divergence_type f_alpha_divergence_coef reference_free label_smoothing use_weighting
            rpo_alpha ld_alpha discopop_tau loss_weights sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
            rpo_weight simpo_gamma cpo_alpha desirable_weight undesirable_weight alpha reward_weights scale_rewards
            reward_funcs reward_model_name_or_path epsilon delta epsilon_high importance_sampling_level
            mask_truncated_completions top_entropy_quantile num_iterations entropy_coef entropy_coef_delta
            entropy_coef_max entropy_coef_min entropy_target multi_objective_aggregation off_policy_mask_threshold
            sapo_temperature_neg sapo_temperature_pos use_adaptive_entropy use_bias_correction_kl vespo_k_neg
            vespo_k_pos vespo_lambda_neg vespo_lambda_pos""",
        "generation": """
            generate_during_eval ds3_gather_for_generation temperature top_p top_k min_p repetition_penalty
            use_transformers_paged cache_implementation use_vllm vllm_server_base_url vllm_mode vllm_model_impl
            vllm_guided_decoding_regex vllm_server_host vllm_server_port vllm_server_timeout
            vllm_gpu_memory_utilization vllm_tensor_parallel_size generation_kwargs max_tool_calling_iterations
            transformers_continuous_batching_config use_transformers_continuous_batching vllm_enable_sleep_mode
            vllm_group_port vllm_importance_sampling_cap vllm_importance_sampling_clip_max
            vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode
            vllm_max_model_length vllm_structured_outputs_regex""",
        "memory, logging and callbacks": """
            gradient_checkpointing_use_reentrant ignore_bias_buffers activation_offloading benchmarks callbacks
            wandb_entity wandb_project wandb_run_group wandb_log_unique_prompts log_completions
            num_completions_to_print log_completions_hub_repo log_multimodal log_unique_prompts""",
    },
    "accelerate launch": {
        "how processes start and where they meet": """
            quiet cpu multi_gpu tpu gpu_ids same_network machine_rank main_process_ip main_process_port log_dir role
            rdzv_backend rdzv_conf max_restarts monitor_interval module no_python tpu_cluster no_tpu_cluster
            tpu_use_cluster tpu_use_sudo tpu_name tpu_zone vm env main_training_function num_cpu_threads_per_process
            enable_cpu_affinity aws_access_key_id aws_secret_access_key debug mpirun_hostfile mpirun_ccl tee
            deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher
            use_xpu help training_script training_script_args""",
        "precision and compilation": """
            mixed_precision downcast_bf16 dynamo_backend dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic
            dynamo_use_regional_compilation fp8_backend fp8_use_autocast_during_eval fp8_margin fp8_interval fp8_format
            fp8_amax_history_len fp8_amax_compute_algo fp8_override_linear_precision fp8_opt_level
            fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim""",
        "DeepSpeed's memory and clipping": """
            zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
            offload_param_nvme_path gradient_clipping zero3_init_flag zero3_save_16bit_model
            deepspeed_moe_layer_cls_names""",
        "where FSDP's weights and gradients are": """
            fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward
            fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type
            fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states
            fsdp_activation_checkpointing fsdp_activation_checkpointing_offload""",
        "how parallelism's sizes are used": """
            use_parallelism_config parallelism_config_cp_backend parallelism_config_cp_comm_strategy
            parallelism_config_sp_backend parallelism_config_sp_seq_length
            parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation""",
        "Megatron-LM, which use_megatron_lm starts": """
            megatron_lm_tp_degree megatron_lm_use_custom_fsdp megatron_lm_no_load_optim megatron_lm_eod_mask_loss
            megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload
            megatron_lm_use_precision_aware_optimizer megatron_lm_decoder_last_pipeline_num_layers
            megatron_lm_pp_degree megatron_lm_num_micro_batches megatron_lm_sequence_parallelism
            megatron_lm_recompute_activations megatron_lm_use_distributed_optimizer megatron_lm_gradient_clipping
            megatron_lm_recompute_granularity megatron_lm_recompute_method megatron_lm_recompute_num_layers
            megatron_lm_attention_backend megatron_lm_expert_model_parallel_size megatron_lm_context_parallel_size
            megatron_lm_attention_dropout megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32
            megatron_lm_expert_tensor_parallel_size megatron_lm_calculate_per_token_loss
            megatron_lm_use_rotary_position_embeddings""",
    },
    "variables": {
        "ranks, which the launcher sets": "RANK LOCAL_RANK LOCAL_WORLD_SIZE",
        "devices, precision and compilation": """
            ACCELERATE_USE_CPU ACCELERATE_TORCH_DEVICE ACCELERATE_CPU_AFFINITY ACCELERATE_MIXED_PRECISION
            ACCELERATE_DOWNCAST_BF16 ACCELERATE_DYNAMO_ ACCELERATE_DYNAMO_BACKEND ACCELERATE_DYNAMO_MODE
            ACCELERATE_DYNAMO_USE_DYNAMIC ACCELERATE_DYNAMO_USE_FULLGRAPH ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION
            ACCELERATE_FP8_ ACCELERATE_FP8_BACKEND ACCELERATE_FP8_OPT_LEVEL ACCELERATE_BYPASS_DEVICE_MAP
            ACCELERATE_INIT_INCLUDE_BUFFERS ACCELERATE_IN_TPU_POD""",
        "messages and debugging": """
            ACCELERATE_DEBUG_MODE ACCELERATE_DEBUG_RDV_FILE ACCELERATE_ENABLE_RICH ACCELERATE_LOG_LEVEL""",
        "accelerate's own tests and notebooks": "ACCELERATE_NUM_PROCESSES",
        "DeepSpeed's memory and clipping": """
            ACCELERATE_CONFIG_DS_FIELDS ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES
            ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
            ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
            ACCELERATE_DEEPSPEED_ZERO3_INIT ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL ACCELERATE_DEEPSPEED_ZERO_STAGE
            ACCELERATE_GRADIENT_CLIPPING DEEPSPEED_USE_HPU""",
        "where FSDP's weights and gradients are": """
            FSDP_ACTIVATION_CHECKPOINTING FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD FSDP_AUTO_WRAP_POLICY
            FSDP_BACKWARD_PREFETCH FSDP_CPU_RAM_EFFICIENT_LOADING FSDP_FORWARD_PREFETCH FSDP_IGNORED_MODULES
            FSDP_MIN_NUM_PARAMS FSDP_OFFLOAD_PARAMS FSDP_RESHARD_AFTER_FORWARD FSDP_SHARDING_STRATEGY
            FSDP_STATE_DICT_TYPE FSDP_SYNC_MODULE_STATES FSDP_TRANSFORMER_CLS_TO_WRAP FSDP_USE_ORIG_PARAMS
            FSDP_VERSION""",
        "how parallelism's sizes are used": """
            ACCELERATE_ALLOW_CP_STANDALONE PARALLELISM_CONFIG_CP_BACKEND PARALLELISM_CONFIG_CP_COMM_STRATEGY
            PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION PARALLELISM_CONFIG_SP_BACKEND PARALLELISM_CONFIG_SP_SEQ_LENGTH
            PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE""",
        "Python constants of accelerate that look like variables": """
            BETA_SP_AVAILABLE_DEEPSPEED_VERSION DEEPSPEED DEEPSPEED_ DEEPSPEED_ENVIRONMENT_NAME
            DEEPSPEED_MULTINODE_LAUNCHERS FSDP_MODEL_NAME FSDP_PYTORCH_VERSION""",
    },
    "env": {},
}

# The prefix of a recipe's key -> its section. The longest prefix that fits wins.
PREFIXES = {
    "accelerator_config.gradient_accumulation_kwargs.": "GradientAccumulationPlugin",
    "accelerator_config.": "AcceleratorConfig",
    "parallelism_config.": "ParallelismConfig",
    "fsdp_config.": "FullyShardedDataParallelPlugin",
    "deepspeed.": "DeepSpeed",
    "model_init_kwargs.": "model_init_kwargs",
    "env.": "env",
}
CLOSED = ("AcceleratorConfig", "GradientAccumulationPlugin")
"""the sections in which transformers refuses a name that is not here"""


def names(section: str) -> frozenset[str]:
    """All names of a section."""
    return frozenset(CAN[section]) | frozenset(name for text in CANNOT[section].values() for name in text.split())


def effect_of(key: str) -> Effect | None:
    """What a recipe's dotted key does to the batch. None if it cannot change it, or if no row has its name."""
    section, name = section_of(key)
    return CAN[section].get(name) or (CAN["TRL"].get(name) if section == "TrainingArguments" else None)


def section_of(key: str) -> tuple[str, str]:
    """The section and the name of a recipe's dotted key: `accelerator_config.split_batches` -> AcceleratorConfig."""
    for prefix, section in PREFIXES.items():
        if key.startswith(prefix):
            return section, key.removeprefix(prefix).removeprefix(f"{prefix[:-1]}_")
    return "TrainingArguments", key
