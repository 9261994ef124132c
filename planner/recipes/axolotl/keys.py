"""The keys of axolotl 0.19.0 (utils/schemas/*.py). It drops any other without a word.

`into` is the Trainer's name, under which the layer below reads the value.
"""

from planner.recipes.rule import EMPTY, Rules, about, key, keys, reads, refuses, says
from planner.recipes.trainer.keys import EVERY_STEP, TRACKING

TITLE, VERSIONS = "axolotl", "in axolotl 0.19"
IGNORED = "~"
"""begins the name under which `KeyReader` has a key that axolotl drops"""
_AXES = "its GPUs share rows, or it fixes the number of processes"
_GONE = "axolotl removed it, and refuses the recipe: remove it"
_COMMITS = "planner commits at a measured interval (checkpoint.every)"
_GENERATES = "only a model that generates reads it"
_ONCE = "planner reads the data once"
_SHARDS = "planner shards by FSDP2"
_SPEED = "it changes speed and memory, not the result"

RULES = Rules(
    (
        *about(
            "what makes the batch",
            key("micro_batch_size", into="per_device_train_batch_size", ours="batch.global", value="whole", default=1,
                mark=True, unset="free", effect=reads("m, of one process")),
            key("gradient_accumulation_steps", ours="batch.global", value="whole", default=1, unset="free",
                effect=reads("A, the micro-batches of an optimizer step")),
            key("batch_size", value="whole", least=0,
                effect=reads("A is batch_size // m if gradient_accumulation_steps is null or 0. It divides the steps")),
            key("accelerator_config", value="section", unset="decides", why="planner distributes the rows itself",
                effect=reads("split_batches makes m that of all GPUs, num_steps replaces A")),
            key("auto_find_batch_size", value="truth", effect=refuses(
                "axolotl lowers micro_batch_size after an out-of-memory error, so no global batch is fixed: write "
                "false, and the size that fitted", False)),
            keys("tensor_parallel_size context_parallel_size sequence_parallel_degree", value="whole", least=0,
                 effect=reads(_AXES), unset="decides", why=_SHARDS),
            keys("dp_shard_size dp_replicate_size expert_parallel_size", value="whole", least=0, effect=reads(_AXES),
                 unset="decides", why=_SHARDS),
            key("deepspeed", value="tree", unset="decides", why=_SHARDS,
                effect=reads("its three sizes must be auto, or equal the Trainer's")),
            key("sample_packing", into="packing", ours="data.packing", value="truth", mark=True,
                effect=says("the unit is a packed row")),
            keys("use_ray", value="truth"),
            key("ray_num_workers", value="whole", default=1, effect=reads("the number of processes with use_ray")),
        ),
        *about(
            "the model",
            key("base_model", into="model_name_or_path", ours="model.path", value="text", mark=True, unset="free"),
            key("model_revision", ours="model.revision", value="text", unset="job"),
            key("base_model_config", value="text"), key("special_tokens", value="section"),
            keys("tokenizer_config cls_model_config processor_type"), key("tokens", value="list"),
            keys("added_tokens_overrides model_config model_kwargs", value="section"),
            keys("resize_token_embeddings_to_32x reinit_weights"),
            keys("model_quantization_config quantize_moe_experts"),
            keys("model_type tokenizer_type is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
                 "is_qwen_derived_model tokenizer_use_fast tokenizer_legacy", why="planner finds it in config.json"),
            key("trust_remote_code", value="truth", why="planner runs no code of a model's repository"),
            key("sequence_len", into="max_length", ours="model.context", value="whole", default=512, mark=True,
                unset="job"),
            key("attn_implementation", ours="model.attention", value="text", unset="job"),
            keys("flash_attention sdp_attention xformers_attention flex_attention sage_attention eager_attention",
                 value="truth", ours="model.attention"),
            key("gradient_checkpointing", ours="train.activation_checkpointing", note="false by default"),
            key("chat_template", value="text", ours="model.chat_template"),
            key("chat_template_jinja", ours="model.chat_template"),
            keys("eot_tokens default_system_message", why="the model's chat template decides it"),
            key("chat_template_kwargs", value="section", why="the model's chat template decides it"),
            key("hf_use_auth_token", value="truth", why="planner takes the token of this machine"),
        ),
        *about(
            "adapters and frozen weights",
            key("adapter", ours="model.lora", value="text", unset="job"),
            key("lora_r", ours="model.lora.rank", value="whole", unset="job"),
            key("lora_alpha", ours="model.lora.alpha", value="number", unset="job"),
            key("lora_dropout", ours="model.lora.dropout", value="number", default=0.0, unset="job"),
            key("lora_target_modules", ours="model.lora.targets", unset="job"),
            key("lora_target_linear", ours="model.lora.targets", value="truth", mark=True),
            keys("lora_target_parameters lora_modules_to_save lora_model_dir"),
            keys("lora_rank_pattern lora_alpha_pattern", value="section", alters=EMPTY),
            key("peft_use_rslora", into="use_rslora", value="truth"),
            key("peft_use_dora", into="use_dora", value="truth"),
            keys("load_in_8bit load_in_4bit", value="truth", ours="model.frozen"),
            keys("peft_layers_to_transform peft_layers_pattern peft_layer_replication peft_init_lora_weights "
                 "loraplus_lr_embedding gptq"),
            key("peft_trainable_token_indices", value="tree"),
            keys("relora lisa_step_interval loraplus_lr_ratio", alters=EMPTY),
            key("unfrozen_parameters", value="list", alters=EMPTY), key("qat", value="section"),
            keys("jagged_restart_steps lisa_n_layers"),
        ),
        *about(
            "the data",
            key("datasets", ours="data.path", value="list", unset="job"),
            key("pretraining_dataset", ours="data.path"),
            key("test_datasets", ours="eval.data", value="list"),
            key("val_set_size", ours="eval.samples", value="number", default=0.0, mark=True),
            key("train_on_inputs", ours="data.loss_on", value="truth"),
            key("excess_length_strategy"), key("min_sample_len"),
            keys("shuffle_merged_datasets shuffle_before_merging_datasets curriculum_sampling dataset_shard_num "
                 "dataset_shard_idx dataset_exact_deduplication"),
            key("group_by_length", value="truth"),
            key("dataloader_drop_last", value="truth", why="planner drops no row"),
            key("dataset_prepared_path", mark=True, why=_ONCE),
            keys("dataset_processes dataset_num_proc dataset_keep_in_memory skip_prepare_dataset push_dataset_to_hub "
                 "num_dataset_shards_to_save streaming_multipack_buffer_size pretrain_multipack_buffer_size",
                 why=_ONCE),
            key("streaming", value="truth", why="planner reads all rows of a set before the first step"),
            keys("pad_to_sequence_len", mark=True, why=_SPEED),
            keys("pad_to_multiple_of batch_flattening eval_sequence_len", why=_SPEED),
            key("eval_sample_packing", mark=True, why="planner splits evaluation as it splits training"),
            keys("sample_packing_* multipack_real_batches", why="planner packs best-fit"),
            keys("remove_unused_columns", why="planner reads only the columns that it needs"),
            keys("image_size image_resize_algorithm", why="planner trains on text"),
        ),
        *about(
            "the method",
            key("rl", ours="objective.kind", value="text", unset="job"),
            keys("reward_model process_reward_model", value="truth"),
            key("rl_beta", ours="objective.beta", value="number", of_loss=True),
            keys("dpo_beta orpo_alpha", value="number", ours="objective.beta", of_loss=True),
            key("dpo_label_smoothing", ours="objective.label_smoothing", value="number", default=0.0, of_loss=True),
            key("kto_desirable_weight", ours="objective.desirable_weight", value="number", default=1.0, of_loss=True),
            key("kto_undesirable_weight", ours="objective.undesirable_weight", value="number", default=1.0,
                of_loss=True),
            key("simpo_gamma", ours="objective.gamma_beta_ratio", value="number", of_loss=True),
            key("cpo_alpha", value="number", default=1.0, of_loss=True),
            key("dpo_loss_type", value="list", of_loss=True), key("dpo_loss_weights", value="list", alters=()),
            key("dpo_use_weighting", alters=EMPTY), key("center_rewards_coefficient", of_loss=True),
            key("num_labels"),
            key("precompute_ref_log_probs", value="truth", ours="objective.reference"),
            keys("dpo_padding_free dpo_use_liger_kernel", why=_SPEED),
            key("trl.num_generations", into="num_generations", value="whole", least=2, of_loss=True),
            key("trl.generation_batch_size", into="generation_batch_size", value="whole", of_loss=True),
            key("trl.beta", value="number", of_loss=True), keys("trl vllm ebft", value="section"),
            keys("neftune_noise_alpha noisy_embedding_alpha use_eaft use_pose kd_trainer", alters=EMPTY),
            keys("eaft_alpha eaft_k"),
        ),
        *about(
            "the optimizer, its schedule and the length of the run",
            key("learning_rate", ours="train.optimizer.lr", value="number", unset="free"),
            key("optimizer", into="optim", ours="train.optimizer.kind", default="adamw_torch_fused", value="text",
                unset="job"),
            key("optim_args", value="tree"), key("optim_target_modules"),
            key("weight_decay", ours="train.optimizer.weight_decay", value="number", default=0.0, unset="job"),
            key("adam_beta1", ours="train.optimizer.betas", value="number", default=0.9),
            key("adam_beta2", ours="train.optimizer.betas", value="number", default=0.999),
            key("adam_epsilon", ours="train.optimizer.eps", value="number", default=1e-08),
            key("max_grad_norm", ours="train.clip_norm", value="norm", default=1.0, unset="job"),
            key("lr_scheduler", into="lr_scheduler_type", ours="train.schedule.kind", default="cosine", value="text",
                unset="job"),
            key("lr_scheduler_kwargs", value="section"),
            key("warmup_steps", ours="train.schedule.warmup", value="number", default=0.0),
            key("warmup_ratio", ours="train.schedule.warmup", value="number", default=0.0),
            keys("cosine_min_lr_ratio cosine_constant_lr_ratio lr_quadratic_warmup lr_div_factor"),
            key("lr_groups", value="list", alters=EMPTY), keys("embedding_lr embedding_lr_scale", alters=()),
            keys("dion_* qgalore_* adam_beta3 adam_epsilon2", why="only another optimizer reads it"),
            key("num_epochs", into="num_train_epochs", ours="train.epochs", value="number", default=1.0),
            key("max_steps", value="number", ours="train.steps"),
            key("seed", ours="train.seed", value="whole", least=0, default=42, unset="job"),
            keys("loss_watchdog_threshold loss_watchdog_patience early_stopping_patience",
                 why="planner stops at train.steps or train.epochs"),
        ),
        *about(
            "precision, memory and speed",
            key("bf16", ours="train.precision", default=True,
                note="axolotl takes bf16 where the GPU has it (bf16 auto)"),
            keys("fp16 bfloat16 float16 float32", ours="train.precision"),
            key("tf32", why="planner keeps torch's default"),
            key("torch_compile", ours="train.compile"),
            key("gradient_checkpointing_kwargs", value="section",
                why="planner has kinds of its own (train.activation_checkpointing)"),
            keys("fp8_config torch_compile_options max_memory", value="section", why=_SPEED),
            key("selective_checkpointing", value="tree", why=_SPEED),
            keys("fp8 fp8_* activation_offloading layer_offloading flash_attn_* "
                 "torch_compile_* lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel liger_* "
                 "cut_cross_entropy chunked_cross_entropy* tiled_mlp* use_kernels low_cpu_mem_usage "
                 "gpu_memory_limit gc_steps torch_empty_cache_steps gc_collect_steps heads_k_stride "
                 "ring_attn_func unsloth_*", why=_SPEED),
            key("plugins", value="list", why="planner loads none of axolotl's plugins"),
        ),
        *about(
            "devices and processes, of which planner takes the count",
            key("fsdp_config", value="section", why=_SHARDS),
            key("fsdp", value="list", why=_SHARDS),
            keys("fsdp_version fsdp_final_state_dict_type deepcompile", why=_SHARDS),
            keys("ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters", why=_SHARDS),
            keys("world_size local_rank ray_run_name expert_parallel_*", why="planner starts its workers itself"),
            keys("device device_map", value="tree", why="planner starts its workers itself"),
            key("resources_per_worker", value="section", why="planner starts its workers itself"),
            keys("dataloader_*", why="planner has its own data loader"),
        ),
        *about(
            "evaluation, saving, logging and the hub",
            keys("eval_strategy evaluation_strategy", value="text", ours="eval.every"),
            key("eval_steps", ours="eval.every", value="number"),
            key("evals_per_epoch", ours="eval.every", value="number", mark=True),
            key("eval_batch_size", into="per_device_eval_batch_size", value="whole", default=1,
                why="planner splits evaluation as it splits training"),
            keys("do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split "
                 "metric_for_best_model greater_is_better load_best_model_at_end eval_table_size "
                 "eval_max_new_tokens lm_eval_*",
                 why="planner evaluates the loss"),
            keys("saves_per_epoch", mark=True, why=_COMMITS),
            key("save_strategy", value="text", why=_COMMITS), key("save_steps", value="number", why=_COMMITS),
            keys("save_only_model save_first_step resume_from_checkpoint auto_resume_from_checkpoints", why=_COMMITS),
            key("dynamic_checkpoint", value="section", why=_COMMITS),
            key("save_total_limit", why="checkpoint.keep is 2"),
            key("output_dir", value="text", ours="name", unset="free", why="checkpoint.path is the folder of the run"),
            key("hub_model_id", ours="name", unset="free"),
            keys("hub_strategy hub_revision save_safetensors", why="planner export exports a trained run"),
            keys("logging_steps profiler_steps profiler_steps_start include_tokens_per_second include_tkps",
                 why=EVERY_STEP),
            key("wandb_project", ours="tracking", unset="free"), key("wandb_entity", ours="tracking", unset="free"),
            key("wandb_name", into="run_name", ours="name", unset="free"),
            keys("use_wandb use_mlflow use_tensorboard use_trackio use_comet use_swanlab",
                 ours="tracking", why=TRACKING),
            keys("wandb_mode mlflow_tracking_uri mlflow_experiment_name", ours="tracking", unset="free"),
            key("comet_experiment_config", value="section", why=TRACKING),
            keys("wandb_* mlflow_run_name hf_mlflow_log_artifacts comet_* swanlab_* trackio_run_name use_otel_metrics "
                 "otel_*", why=TRACKING),
            key("trackio_project_name", into="project", ours="tracking"), key("trackio_space_id", ours="tracking"),
            keys("gradio_* generate_samples generation_* num_generation_samples", why=_GENERATES),
        ),
        *about(
            "keys of its schema that have no effect on training, or that it refuses",
            keys("""
            strict trainer_cls merge_lora merge_method inference mean_resizing_embeddings
            shrink_embeddings embeddings_skip_upcast fix_untrained_tokens max_prompt_len pose_*
            pretrain_multipack_attn pretraining_sample_concatenation xformers flash_optimum
            gemma4_hybrid_attn_impl large_head_attention sdpa_varlen fused_attn_kernel experts_implementation
            ple_cpu_offload scaling_softmax* llama4_linearized_experts fp32_norms fp32_norm_classes freeze_mm_modules
            tokenizer_use_mistral_common tokenizer_save_jinja_files use_onebitllms
            experimental_skip_move_to_device lora_fan_in_fan_out
            peft_ensure_weight_tying peft_autocast_adapter_dtype qlora_sharded_model_loading lora_on_cpu
            relora_* lisa_layers_attribute jagged_restart_* torchdistx_path role_boundaries
            is_preprocess preprocess_iterable total_num_tokens total_supervised_tokens sample_packing_eff_est
            axolotl_config_path kd_* nemo_gym_* spectrum_* dsv4_* use_scattermoe use_sonicmoe use_dsv4_kernels
            use_glm_dsa_kernels nvfp4_* nonexpert_quantization dense_mixer grokfast_* use_mora
            expert_backend"""),
            keys("quantization flex_attn_compile_kwargs processor_kwargs model_quantization_config_kwargs peft "
                 "bnb_config_kwargs", value="section"),
            keys("llmcompressor hatchery diffusion mora", value="tree"),
            keys("dpo_use_logits_to_keep dpo_generate_during_eval dpo_norm_loss rpo_alpha", effect=refuses(_GONE)),
            key("rope_scaling", value="tree", effect=refuses(_GONE, *EMPTY, False)),
            keys("max_packed_sequence_len s2_attention flash_attn_rms_norm unsloth_cross_entropy_loss "
                 "unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o unsloth_rms_norm unsloth_rope",
                 effect=refuses(_GONE, *EMPTY, False)),
        ),
    )
)  # fmt: skip
"""all keys that axolotl takes"""
METHODS = ("dpo", "ipo", "kto", "orpo", "simpo", "grpo", "gdpo", "ebft")
ATTENTION = (
    "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch",
    "flex_attention", "xformers", "sage", "fp8",
)  # fmt: skip
OLD_ATTENTION = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "xformers_attention": "xformers",
    "flex_attention": "flex_attention", "sage_attention": "sage", "eager_attention": "eager",
}  # fmt: skip
