"""The keys of ms-swift 4.6.0 beyond the Trainer's (swift/arguments, swift/trainers/arguments.py). It refuses any other.

Those of `megatron sft` are others.
"""

from planner.recipes.rule import EMPTY, Rules, about, key, keys, reads, refuses, says
from planner.recipes.trainer.keys import MICRO, SHARED, STEPS, TRACKING, TRAINING_ARGUMENTS

VERSIONS = "in ms-swift 4.6.0"
TYPES = ("dpo", "orpo", "simpo", "kto", "cpo", "rm", "ppo", "grpo", "gkd")
_BATCH = {"ours": "batch.global", "value": "whole", "default": 1, "unset": "free"}
_GROUPS = reads("GRPO refuses counts that cut a group")
_BY_DEFAULT = reads("A. If it is missing, it is 16 / m / GPUs, rounded up (1 for grpo)")
_GENERATES = "only a model that generates reads it"
_ONCE = "planner reads the data once"
_FIRST = "planner reads all rows of a set before the first step"
_FP32 = "planner's trained weights are fp32, its passes in train.precision"
_OWN = Rules(
    about(
        "what makes the batch",
        key(MICRO, effect=reads("m, of one process"), **_BATCH),
        key(STEPS, effect=_BY_DEFAULT, **_BATCH),
        key("sequence_parallel_size", value="whole", default=1, effect=reads("as many GPUs share a row")),
        key("deepspeed_autotp_size", effect=refuses(SHARED, 1)),
        key("use_ray", value="truth", effect=refuses("Ray's device groups decide the batch: remove it", False)),
        key("num_mini_batches", value="whole", default=1, effect=reads("PPO needs whole micro-batches in each part")),
        key("packing", ours="data.packing", value="truth", effect=says("the unit is a packed row")),
        keys("num_generations num_generations_eval", value="whole", effect=_GROUPS),
        keys("generation_batch_size steps_per_generation", value="whole", effect=_GROUPS),
        key("per_device_eval_batch_size", value="whole", default=1, why="planner splits evaluation itself"),
    )
    + about(
        "the method and its loss",
        key(
            "rlhf_type",
            default="dpo",
            choices=TYPES,
            mark=True,
            effect=says("pairs count in dpo, cpo, orpo, simpo and rm"),
        ),
        key("tuner_type", default="lora", mark=True, unset="job"),
        key("train_type", into="tuner_type", default="lora", mark=True, is_old=True),
        key("loss_type", ours="objective.kind", unset="job", of_loss=True),
        key("beta", ours="objective.beta", value="number", default={"simpo": 2.0, "": 0.1}, unset="job", of_loss=True),
        key("label_smoothing", ours="objective.label_smoothing", value="number", default=0.0, of_loss=True),
        key("cpo_alpha", value="number", default=1.0, of_loss=True),
        key("simpo_gamma", ours="objective.gamma_beta_ratio", value="number", default=1.0, of_loss=True),
        key("desirable_weight", ours="objective.desirable_weight", value="number", default=1.0),
        key("undesirable_weight", ours="objective.undesirable_weight", value="number", default=1.0),
        key("loss_scale", ours="data.loss_on", default={"sft": "default", "": "last_round"}, mark=True, of_loss=True),
        keys("""
        loss_weights discopop_tau ref_model ref_adapters ref_model_type ref_model_revision enable_channel_loss
        num_labels problem_type"""),
        keys("rpo_alpha ld_alpha is_binary_loss_scale", alters=()),
        key("mrl_dims", value="tree"),
        key("task_type", alters=("causal_lm",)),
        keys("enable_dft_loss router_aux_loss_coef", alters=EMPTY),
    )
    + about(
        "the model, its adapters and frozen weights",
        key("model", into="model_name_or_path", ours="model.path", value="text", unset="free"),
        key("model_revision", ours="model.revision", value="text", unset="job"),
        key("attn_impl", into="attn_implementation", ours="model.attention", mark=True),
        keys("torch_dtype lora_dtype", why=_FP32),
        key("max_length", ours="model.context", value="whole", least=2, unset="job"),
        key("template", ours="model.chat_template"),
        key("lora_rank", into="lora_r", ours="model.lora.rank", value="whole", default=8, unset="job", mark=True),
        key("lora_alpha", ours="model.lora.alpha", value="number", default=32.0, unset="job"),
        key("lora_dropout", ours="model.lora.dropout", value="number", default=0.05, unset="job"),
        key("target_modules", into="lora_target_modules", ours="model.lora.targets", default="all-linear", mark=True),
        key("modules_to_save", into="lora_modules_to_save"),
        key("target_parameters", into="lora_target_parameters"),
        keys("use_rslora use_dora", value="truth"),
        keys("quant_method quant_bits", ours="model.frozen", mark=True),
        key("bnb_4bit_use_double_quant", into="use_bnb_nested_quant", value="truth", default=True),
        keys("freeze_vit freeze_aligner", mark=True, why="planner trains on text"),
        keys("""
        max_pixels norm_bbox vit_lr aligner_lr vit_gradient_checkpointing freeze_llm bnb_4bit_quant_type hqq_axis
        bnb_4bit_compute_dtype bnb_4bit_quant_storage init_weights target_regex lorap_lr_ratio lora_bias adapters
        tuner_backend use_swift_lora freeze_parameters_regex trainable_parameters_regex lora_ga_scale
        lora_ga_batch_size lora_ga_iters
        lora_ga_max_length lora_ga_direction lora_ga_stable_gamma fourier_n_frequency fourier_scaling boft_block_size
        boft_block_num boft_dropout boft_n_butterfly_factor vera_rank vera_projection_prng_key vera_dropout
        vera_d_initial adapter_act adapter_length adalora_target_r adalora_init_r adalora_tinit adalora_tfinal
        adalora_deltaT adalora_beta1 adalora_beta2 adalora_orth_reg_weight llamapro_num_new_blocks llamapro_num_groups
        reft_layer_key reft_layers reft_rank reft_intervention_type model_type experts_impl
        new_special_tokens max_model_len local_repo_path init_strategy
        enable_npu_model_patch ignore_args_error load_data_args"""),
        keys("reft_args rope_scaling device_map max_memory model_kwargs", value="tree"),
        key("load_args", value="truth"),
        keys(
            "freeze_parameters freeze_parameters_ratio trainable_parameters external_plugins custom_register_path",
            alters=EMPTY,
        ),
    )
    + about(
        "the data",
        key("dataset", ours="data.path", unset="job", mark=True),
        key("val_dataset", ours="eval.data"),
        keys("train_dataloader_shuffle group_by_length use_chat_template strict", value="truth"),
        key("split_dataset_ratio", ours="eval.samples", value="number", default=0.0, mark=True),
        key("padding_free", ours="batch.max_tokens", value="truth"),
        keys("lazy_tokenize load_from_cache_file", value="truth", mark=True, why=_ONCE),
        keys("packing_length packing_num_proc", value="whole", mark=True, why=_ONCE),
        keys("packing_strategy dataset_num_proc download_mode", why=_ONCE),
        key("streaming", value="truth", why=_FIRST),
        key("shuffle_buffer_size", why=_FIRST),
        keys("model_author model_name", mark=True, why="they fill in rows of self-cognition"),
        key("use_hf", value="truth", mark=True, why="planner loads from Hugging Face"),
        keys("hub_token", why="set HF_TOKEN where the workers start"),
        keys("enable_thinking preserve_thinking add_non_thinking_prefix", why="the model's chat template decides"),
        keys("""
        cached_dataset cached_val_dataset dataset_shuffle val_dataset_shuffle
        interleave_prob stopping_strategy disable_auto_column_mapping custom_dataset_info system
        decision_drop_instructions decision_subsample_options decision_state_as_text decision_shuffle_fields
        truncation_strategy agent_template padding_side template_backend response_prefix
        disable_ignore_empty_think"""),
        key("columns", value="tree"),
    )
    + about(
        "the optimizer, processes, and where results go",
        key("learning_rate", ours="train.optimizer.lr", value="number", default=1e-4, unset="free"),
        key("weight_decay", ours="train.optimizer.weight_decay", value="number", default=0.1, unset="job"),
        key("adam_beta2", ours="train.optimizer.betas", value="number", default=0.95),
        key("lr_scheduler_type", ours="train.schedule.kind", default="cosine", unset="job"),
        key("warmup_ratio", ours="train.schedule.warmup", value="number", default=0.0),
        key("bf16", ours="train.precision", value="truth", default=True, note="ms-swift takes the model's type"),
        keys("use_galore lisa_activated_layers", alters=EMPTY),
        key("optimizer", alters=()),
        key("swanlab_*", why=TRACKING),
        key("ENV", value="section", why="an environment variable: set it where the workers start"),
        keys("add_version create_checkpoint_symlink", why="checkpoint.path is the folder of the run"),
        keys("""
        max_epochs galore_target_modules galore_rank galore_update_proj_gap
        galore_scale galore_proj_type galore_optim_per_parameter galore_with_embedding galore_quantization
        galore_proj_quant galore_proj_bits galore_proj_group_size galore_cos_threshold galore_gamma_proj
        galore_queue_size lisa_step_interval early_stop_interval callbacks use_flash_ckpt use_logits_to_keep
        resume_only_model zero_hpz_partition_size ray_exp_name ds3_gather_for_generation eval_metric
        acc_strategy check_model safe_serialization max_shard_size eval_use_evalscope eval_dataset eval_limit"""),
        keys("device_groups fsdp eval_dataset_args eval_generation_config extra_eval_args", value="tree"),
    )
    + about(
        "generation and rewards",
        keys(
            """
        vllm_limit_mm_per_prompt vllm_speculative_config vllm_engine_kwargs teacher_deepspeed generation_config
        gym_env""",
            value="tree",
            why=_GENERATES,
        ),
        keys("use_vllm whiten_rewards", value="truth", why=_GENERATES),
        keys("vllm_* cosine_* chord_* rlsd_* fipo_* sdar_* teacher_* reward_* gkd_* rollout_*", why=_GENERATES),
        keys(
            """
        max_new_tokens temperature top_k top_p min_p repetition_penalty num_beams stream stop_words logprobs
        top_logprobs structured_outputs_regex max_completion_length response_length predict_with_generate
        generation_max_length generation_num_beams sortish_sampler async_generate sleep_level
        move_model_batches offload_optimizer offload_model wandb_log_unique_prompts enable_flattened_weight_sync
        log_completions num_sample_generations local_rollout_forward_batch_size num_iterations num_ppo_epochs
        kl_coef cliprange vf_coef cliprange_value gamma lam missing_eos_penalty epsilon epsilon_high
        center_rewards_coefficient sft_alpha lmbda seq_kd offload_teacher_model delta repetition_n_grams
        repetition_max_penalty sync_ref_model ref_model_sync_steps ref_model_mixup_alpha multi_turn_scheduler max_turns
        completion_length_limit_scope use_gym_env dynamic_sample max_resample_times overlong_filter
        soft_max_length soft_cache_length scale_rewards log_entropy top_entropy_quantile importance_sampling_level
        tau_pos tau_neg advantage_estimator kl_in_reward advantage_reweight real_tau log_rollout_offpolicy_metrics
        off_policy_sequence_mask_delta""",
            why=_GENERATES,
        ),
    )
)
RULES = TRAINING_ARGUMENTS | _OWN
"""all keys that ms-swift takes"""
