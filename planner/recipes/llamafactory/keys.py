"""The keys of LLaMA-Factory 0.9.5 beyond the Trainer's (hparams/*.py). It refuses any other.

Its trainer without a name (v0). Neither Megatron's (USE_MCA) nor v1 (USE_V1) has these keys alone.
"""

from planner.recipes.rule import EMPTY, Rules, about, key, keys, says
from planner.recipes.trainer.keys import TRACKING, TRAINING_ARGUMENTS

VERSIONS = "in LLaMA-Factory 0.9.5"
_NO_REPOSITORY_CODE = "planner runs no code of a model's repository"
_GENERATES = "only a model that generates reads it"
_MEDIA = """
    image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels video_fps
    video_maxlen use_audio_in_video audio_sampling_rate freeze_vision_tower freeze_multi_modal_projector
    freeze_language_model
"""
MEDIA = tuple(_MEDIA.split())
"""keys of models that take images, video or audio"""

_OWN = Rules(
    (
        *about(
            "the method",
            key(
                "stage",
                default="sft",
                mark=True,
                unset="job",
                effect=says("pairs count in dpo and rm, rows in the others"),
            ),
            key("finetuning_type", default="lora", mark=True, unset="job"),
            key("pref_loss", ours="objective.kind", default="sigmoid", mark=True, unset="job", of_loss=True),
            key(
                "pref_beta",
                into="beta",
                ours="objective.beta",
                value="number",
                default=0.1,
                mark=True,
                unset="job",
                of_loss=True,
            ),
            key(
                "dpo_label_smoothing",
                into="label_smoothing",
                ours="objective.label_smoothing",
                value="number",
                default=0.0,
                of_loss=True,
            ),
            key(
                "kto_chosen_weight",
                into="desirable_weight",
                ours="objective.desirable_weight",
                value="number",
                default=1.0,
                of_loss=True,
            ),
            key(
                "kto_rejected_weight",
                into="undesirable_weight",
                ours="objective.undesirable_weight",
                value="number",
                default=1.0,
                of_loss=True,
            ),
            key("simpo_gamma", ours="objective.gamma_beta_ratio", value="number", default=0.5, of_loss=True),
            keys("pref_ftx pref_bco_weight", value="number", default=0.0, mark=True, alters=EMPTY),
            keys("ld_alpha", of_loss=True),
            keys("use_dft_loss use_asft_loss use_eaft_loss", value="truth", alters=EMPTY),
            keys("asft_alpha eaft_alpha", of_loss=True),
            keys(
                """
            ref_model reward_model reward_model_type ppo_buffer_size ppo_epochs ppo_score_norm ppo_target
            ppo_whiten_rewards""",
                of_loss=True,
            ),
            keys("ref_model_adapters ref_model_quantization_bit reward_model_adapters reward_model_quantization_bit"),
        ),
        *about(
            "the model",
            key("model_name_or_path", ours="model.path", value="text", unset="free"),
            key("model_revision", ours="model.revision", value="text", unset="job"),
            key("trust_remote_code", why=_NO_REPOSITORY_CODE, stands_alone=True),
            key("flash_attn", into="attn_implementation", ours="model.attention", mark=True),
            key("disable_gradient_checkpointing", value="truth", why="train.activation_checkpointing sets it"),
            key(
                "gradient_checkpointing",
                into="gradient_checkpointing_of_the_trainer",
                why="disable_gradient_checkpointing decides it",
            ),
            key(
                "enable_liger_kernel",
                into="use_liger_kernel",
                value="truth",
                why=("planner has losses in chunks. Write train.kernels: liger for Liger's other kernels"),
            ),
            keys(
                "use_unsloth use_unsloth_gc use_v1_kernels use_kt use_reentrant_gc",
                why="it changes only speed and memory",
            ),
            keys(
                "upcast_layernorm upcast_lmhead_output", why="planner's weights are fp32, its passes in train.precision"
            ),
            keys("pure_bf16", value="truth", why="planner's trained weights are fp32, its passes in train.precision"),
            keys("infer_dtype infer_backend offload_folder use_kv_cache", why=_GENERATES),
            keys("cache_dir use_fast_tokenizer low_cpu_mem_usage print_param_status split_special_tokens"),
            keys("hf_hub_token ms_hub_token om_hub_token", why="set HF_TOKEN where the workers start"),
            keys("""
            resize_vocab add_tokens add_special_tokens
            new_special_tokens_config init_special_tokens"""),
            keys("rope_scaling mixture_of_depths", alters=()),
            key("moe_aux_loss_coef", alters=EMPTY),
            key("shift_attn", value="truth", alters=EMPTY),
            key("train_from_scratch", value="truth"),
            keys(_MEDIA, why="planner trains on text"),
            keys("""
            kt_weight_path kt_expert_checkpoint_path kt_use_lora_experts kt_lora_expert_num
            kt_lora_expert_intermediate_size"""),
        ),
        *about(
            "adapters and frozen weights",
            key("lora_rank", into="lora_r", ours="model.lora.rank", value="whole", default=8, mark=True, unset="job"),
            key("lora_alpha", ours="model.lora.alpha", value="number", unset="job"),
            key("lora_dropout", ours="model.lora.dropout", value="number", default=0.0, unset="job"),
            key(
                "lora_target",
                into="lora_target_modules",
                ours="model.lora.targets",
                default="all",
                mark=True,
                unset="job",
            ),
            key("additional_target", into="lora_modules_to_save"),
            keys("use_rslora use_dora", value="truth"),
            keys("pissa_init", value="truth"),
            keys("pissa_iter pissa_convert loraplus_lr_embedding create_new_adapter module_dropout"),
            keys("loraplus_lr_ratio adapter_name_or_path adapter_folder"),
            key("quantization_bit", ours="model.frozen", mark=True),
            key("quantization_type", into="bnb_4bit_quant_type"),
            key("double_quantization", into="use_bnb_nested_quant", value="truth"),
            keys("quantization_method quantization_device_map"),
            keys("""
            freeze_trainable_layers freeze_trainable_modules freeze_extra_modules use_llama_pro oft_rank
            oft_block_size oft_target"""),
        ),
        *about(
            "the data",
            key("dataset", ours="data.path", mark=True, unset="job"),
            key("eval_dataset", ours="eval.data"),
            key("val_size", ours="eval.samples", default=0.0, mark=True),
            key("dataset_dir", default="data", mark=True),
            key("template", ours="model.chat_template", mark=True),
            key(
                "cutoff_len",
                into="max_length",
                ours="model.context",
                value="whole",
                least=2,
                default=2048,
                mark=True,
                unset="job",
            ),
            key("packing", ours="data.packing", value="truth", effect=says("the unit is a packed row")),
            key("neat_packing", value="truth", mark=True, effect=says("the unit is a packed row")),
            key("train_on_prompt", ours="data.loss_on", value="truth", mark=True),
            key("mask_history", value="truth", mark=True, alters=EMPTY),
            keys("max_samples mix_strategy interleave_probs tool_format"),
            key("default_system", why="write it into the rows, as their first turn"),
            key("tokenized_path", why="planner tokenizes the data sets itself"),
            keys("streaming buffer_size", why="planner reads all rows of a set before the first step"),
            keys("overwrite_cache", mark=True, why="planner reads the data once"),
            keys(
                "preprocessing_batch_size preprocessing_num_workers data_shared_file_system",
                why="planner reads the data once",
            ),
            keys("enable_thinking preserve_thinking", why="the model's chat template decides it"),
            keys("media_dir ignore_pad_token_for_loss disable_shuffling"),
            keys("eval_on_each_dataset eval_num_beams", why="planner evaluates one data set"),
        ),
        *about(
            "the optimizer",
            keys("use_galore use_apollo use_badam use_adam_mini use_muon", value="truth"),
            keys("galore_layerwise apollo_layerwise", value="truth"),
            keys("""
            galore_target galore_rank galore_update_interval galore_scale galore_proj_type apollo_target apollo_rank
            apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_scale_front
            badam_mode badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode
            badam_verbose"""),
        ),
        *about(
            "precision, and where results go",
            key("plot_loss", mark=True, stands_alone=True, why="planner records and tracks every step"),
            keys("include_effective_tokens_per_second compute_accuracy", why="planner has metrics of its own"),
            key("use_swanlab", value="truth", why=TRACKING),
            keys(
                """
            swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
            swanlab_lark_webhook_url swanlab_lark_secret""",
                why=TRACKING,
            ),
            keys("early_stopping_steps"),
            keys(
                """
            enable_torch_profiler profile_modules profiler_active_steps profiler_output_dir profiler_profile_memory
            profiler_record_shapes profiler_repeat profiler_wait_steps profiler_warmup_steps profiler_with_stack""",
                why="planner has no profiler",
            ),
            keys(
                """
            export_dir export_size export_device export_quantization_bit export_quantization_dataset
            export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id""",
                why="planner export exports a trained run",
            ),
            keys(
                """
            do_sample temperature top_p top_k num_beams max_new_tokens repetition_penalty length_penalty
            skip_special_tokens predict_with_generate sortish_sampler generation_max_length generation_num_beams
            generation_config vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank
            sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_lora_backend""",
                why=_GENERATES,
            ),
            keys("vllm_config sglang_config", value="tree", why=_GENERATES),
            key("max_length", into="generation.max_length", why=_GENERATES),
        ),
        *about(
            "other trainers",
            keys("use_mca use_hyper_parallel", value="truth"),
            keys("hyper_parallel_args fp8 fp8_backend fp8_enable_fsdp_float8_all_gather"),
            key("ray_num_workers", value="whole", default=1),
            keys(
                """
            ray_run_name ray_storage_path ray_storage_filesystem placement_strategy
            master_addr master_port""",
                why="planner starts its workers itself",
            ),
            keys("ray_init_kwargs resources_per_worker", value="tree", why="planner starts its workers itself"),
        ),
        *about(
            "names of versions before 0.9, which 0.9.5 refuses",
            key("dpo_beta", into="beta", ours="objective.beta", value="number", default=0.1, is_old=True),
            key("dpo_loss", into="pref_loss", is_old=True, mark=True),
            key("dpo_ftx", into="pref_ftx", value="number", is_old=True, mark=True),
            key("orpo_beta", value="number", is_old=True, mark=True),
        ),
    )
)
# Keys of transformers 4, and of Python classes, that 0.9.5 with transformers 5 refuses.
_DROPPED = """
    activation_checkpointing activation_checkpointing_kwargs adafactor dataloader_in_order
    dataloader_multiprocessing_context evaluation_strategy fp16_backend fp16_opt_level fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap group_by_length half_precision_backend include_inputs_for_metrics
    include_tokens_per_second jit_mode_eval mp_parameters no_cuda past_index save_safetensors torchdynamo
    tpu_metrics_debug tpu_num_cores use_ipex use_legacy_prediction_loop use_mps_device ray_scope
"""
_OLD = frozenset(_DROPPED.split())
RULES = Rules(tuple(row._replace(is_old=row.name in _OLD) for row in TRAINING_ARGUMENTS)) | _OWN
"""all keys that LLaMA-Factory takes"""
OLD_NAMES = _OWN.of(is_old=True)
"""keys of LLaMA-Factory itself that 0.9.5 refuses"""
STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
