"""The keys that TRL's scripts take (TRL 0.19 to 1.16, transformers 4.53 to 5.23). TRL refuses any other key."""

from planner.recipes.trainer.fields import names

METHODS = ("sft", "dpo", "orpo", "kto", "grpo")
"""the methods of TRL's scripts that planner reads"""

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
NO_SETTING = "planner has no such setting"
"""why a key is dropped if nothing more is known of it"""
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
    "padding_free",
    "group_by_length",
    "assistant_only_loss",
    "completion_only_loss",
    "precompute_ref_log_probs",
    "reference_free",
    "use_weighting",
    "sync_ref_model",
    "force_use_ref_model",
    "dataloader_drop_last",
    "adafactor",
    "accelerator_config.even_batches",
    "auto_find_batch_size",
)
"""keys that planner reads as booleans"""
# Further options of HfArgumentParser that need no value.
_FLAGS = """
activation_checkpointing activation_offloading batch_eval_metrics bf16_full_eval cast_lm_head_to_fp32
dataloader_persistent_workers dataset_streaming ddp_find_unused_parameters disable_tqdm do_eval do_predict do_train
enable_jit_checkpoint eval_on_start eval_use_gather_object fp16_full_eval fsdp full_determinism
hub_always_push hub_private_repo ignore_bias_buffers ignore_data_skip include_num_input_tokens_seen jit_mode_eval
load_best_model_at_end log_completions log_unique_prompts mask_truncated_completions no_cuda overwrite_output_dir
prediction_loss_only push_to_hub restore_callback_states_from_checkpoint save_on_each_node
save_only_model tf32 torch_compile trust_remote_code use_adaptive_entropy use_bnb_nested_quant use_cache use_cpu
use_ipex use_liger_kernel use_mps_device use_transformers_continuous_batching use_transformers_paged use_vllm
vllm_enable_sleep_mode
"""
ALONE = frozenset(TRUTHS) | TRUE_BY_DEFAULT | frozenset(_FLAGS.split())
"""options that may stand without a value on a command line"""
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
KNOWN = names("TrainingArguments") | names("TRL") | frozenset(OLDER_TRL) | OLDER_HANDBOOK
