"""The keys that TRL's scripts take (TRL 0.19 to 1.16, transformers 4.53 to 5.23). TRL refuses any other key."""

METHODS = ("sft", "dpo", "orpo", "kto", "grpo")
"""the methods of TRL's scripts that planner reads"""

# transformers.TrainingArguments
_TRAINING = """
output_dir overwrite_output_dir do_train do_eval do_predict eval_strategy evaluation_strategy prediction_loss_only
per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps eval_accumulation_steps eval_delay
torch_empty_cache_steps learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm num_train_epochs
max_steps lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps log_level log_level_replica log_on_each_node
logging_dir logging_strategy logging_first_step logging_steps logging_nan_inf_filter save_strategy save_steps
save_total_limit save_safetensors save_on_each_node save_only_model restore_callback_states_from_checkpoint no_cuda
use_cpu use_mps_device seed data_seed jit_mode_eval use_ipex bf16 fp16 fp16_opt_level half_precision_backend
bf16_full_eval fp16_full_eval tf32 local_rank ddp_backend tpu_num_cores tpu_metrics_debug debug dataloader_drop_last
eval_steps dataloader_num_workers dataloader_prefetch_factor past_index run_name disable_tqdm remove_unused_columns
label_names load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip fsdp
fsdp_min_num_params fsdp_config fsdp_transformer_layer_cls_to_wrap accelerator_config deepspeed
label_smoothing_factor optim optim_args adafactor group_by_length length_column_name report_to
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph dataloader_pin_memory
dataloader_persistent_workers dataloader_in_order dataloader_multiprocessing_context skip_memory_metrics
use_legacy_prediction_loop push_to_hub resume_from_checkpoint hub_model_id hub_strategy hub_token hub_private_repo
hub_always_push hub_revision gradient_checkpointing gradient_checkpointing_kwargs include_inputs_for_metrics
include_for_metrics eval_do_concat_batches fp16_backend mp_parameters auto_find_batch_size full_determinism
torchdynamo ray_scope ddp_timeout torch_compile torch_compile_backend torch_compile_mode
include_tokens_per_second include_num_input_tokens_seen neftune_noise_alpha optim_target_modules
batch_eval_metrics eval_on_start use_liger_kernel liger_kernel_config eval_use_gather_object
average_tokens_across_devices use_cache parallelism_config project trackio_space_id trackio_bucket_id
trackio_static_space_id enable_jit_checkpoint train_sampling_strategy activation_checkpointing
activation_checkpointing_kwargs
"""
# TRL's ScriptArguments, ModelConfig and trainer configurations, and the alignment-handbook's dataset_mixture.
_TRL = """
dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming
gradient_checkpointing_use_reentrant ignore_bias_buffers dataset_mixture datasets test_split_size streaming
benchmarks callbacks system_prompt wandb_entity wandb_project wandb_run_group model_name_or_path model_revision
torch_dtype dtype trust_remote_code attn_implementation use_peft lora_r lora_alpha lora_dropout
lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora load_in_8bit
load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage bnb_4bit_compute_dtype use_liger
tokenizer_name_or_path model_init_kwargs chat_template chat_template_path dataset_text_field dataset_kwargs
dataset_num_proc eos_token pad_token max_length max_seq_length packing packing_strategy padding_free
pad_to_multiple_of eval_packing dataset_batch_size num_of_sequences chars_per_token completion_only_loss
assistant_only_loss activation_offloading loss_type shuffle_dataset bos_token ref_model_init_kwargs
model_adapter_name ref_adapter_name force_use_ref_model disable_dropout use_logits_to_keep padding_value
label_pad_token_id max_prompt_length max_completion_length truncation_mode precompute_ref_log_probs
precompute_ref_batch_size tools use_liger_loss liger_loss base_model_attribute_name beta f_divergence_type
f_alpha_divergence_coef reference_free label_smoothing use_weighting rpo_alpha ld_alpha discopop_tau
loss_weights sync_ref_model ref_model_mixup_alpha ref_model_sync_steps generate_during_eval rpo_weight
simpo_gamma cpo_alpha is_encoder_decoder desirable_weight undesirable_weight num_generations
num_generations_eval ds3_gather_for_generation generation_batch_size steps_per_generation temperature top_p
top_k min_p repetition_penalty use_transformers_paged cache_implementation use_vllm vllm_server_base_url
vllm_mode vllm_model_impl vllm_guided_decoding_regex vllm_server_host vllm_server_port vllm_server_timeout
vllm_gpu_memory_utilization vllm_tensor_parallel_size num_iterations epsilon delta epsilon_high
importance_sampling_level reward_weights scale_rewards mask_truncated_completions top_entropy_quantile
log_completions num_completions_to_print wandb_log_unique_prompts reward_funcs reward_model_name_or_path
generation_kwargs chat_template_kwargs router_aux_loss_coef alpha cast_lm_head_to_fp32 entropy_coef
entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target log_completions_hub_repo log_multimodal
log_unique_prompts max_tool_calling_iterations multi_objective_aggregation off_policy_mask_threshold
sapo_temperature_neg sapo_temperature_pos transformers_continuous_batching_config use_adaptive_entropy
use_bias_correction_kl use_transformers_continuous_batching vespo_k_neg vespo_k_pos vespo_lambda_neg
vespo_lambda_pos vllm_enable_sleep_mode vllm_group_port vllm_importance_sampling_cap
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
vllm_importance_sampling_mode vllm_max_model_length vllm_structured_outputs_regex
"""
# Keys of TRL 0.7 to 0.18 that newer versions dropped. None of them decides the loss or the batch.
_OLD = """
max_target_length use_num_logits_to_keep vllm_device vllm_dtype vllm_max_model_len vllm_enable_prefix_caching
"""
# Keys of the alignment-handbook up to v0.3 (src/alignment/configs.py), which TRL's scripts refuse.
_OLDER = """
dataset_mixer dataset_splits dataset_configs preprocessing_num_workers use_flash_attention_2 text_column
truncation_side auto_insert_empty_system_msg base_model_revision model_code_revision
"""
# Options that are true by default in a version. transformers' HfArgumentParser has --no_NAME only for these.
_TRUE = """
average_tokens_across_devices log_on_each_node logging_nan_inf_filter eval_do_concat_batches dataloader_pin_memory
dataloader_in_order remove_unused_columns skip_memory_metrics save_safetensors gradient_checkpointing disable_dropout
ds3_gather_for_generation shuffle_dataset scale_rewards vllm_importance_sampling_correction log_multimodal
use_bias_correction_kl logging_first_step auto_insert_empty_system_msg
"""
OLDER_HANDBOOK, TRUE_BY_DEFAULT = frozenset(_OLDER.split()), frozenset(_TRUE.split())
OLDER_TRL = tuple(_OLD.split())
VERSIONS = "in TRL 0.19 to 1.16"
TRUTHS = (
    "bf16",
    "fp16",
    "gradient_checkpointing",
    "use_peft",
    "use_rslora",
    "use_dora",
    "load_in_4bit",
    "load_in_8bit",
    "packing",
    "assistant_only_loss",
    "completion_only_loss",
    "precompute_ref_log_probs",
    "reference_free",
    "use_weighting",
    "sync_ref_model",
    "force_use_ref_model",
    "dataloader_drop_last",
    "adafactor",
    "accelerator_config.split_batches",
    "accelerator_config.even_batches",
)
"""keys that planner reads as booleans"""
TEXTS = (
    "report_to",
    "run_name",
    "logging_dir",
    "project",
    "trackio_space_id",
    "wandb_project",
    "wandb_entity",
    "wandb_run_group",
)
"""keys whose value on a command line is a text, also `none` and `007`"""
TRUE_TEXTS, FALSE_TEXTS = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
"""texts that transformers' HfArgumentParser reads as booleans, in lower or upper case"""
KNOWN = frozenset((_TRAINING + _TRL + _OLD).split()) | OLDER_HANDBOOK
