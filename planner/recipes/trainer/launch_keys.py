"""The options of accelerate, torchrun and deepspeed, and the variables that accelerate reads, a row for each."""

from planner.recipes.rule import Rules, about, key, keys, reads, refuses, says
from planner.recipes.trainer.keys import SHARED

ACCELERATE_LAUNCH = Rules(
    (
        *about(
            "what makes the batch",
            key("num_processes", effect=reads("W on all machines")),
            key("config_file", effect=reads("the accelerate file")),
            key("gradient_accumulation_steps", effect=reads("DeepSpeed's A, which must equal the Trainer's")),
            key("deepspeed_config_file", effect=reads("its three sizes must be auto, or equal the Trainer's")),
            key("use_deepspeed", effect=reads("whether DeepSpeed checks its sizes")),
            key("use_fsdp", effect=reads("how gradients are sharded")),
            key("num_machines", value="whole", effect=says("num_processes counts all of them")),
            key("use_megatron_lm", effect=refuses("Megatron-LM has batch sizes of its own: remove it", False)),
            key(
                "parallelism_config_dp_replicate_size",
                effect=reads("it times dp_shard_size must be the number of processes"),
            ),
            key(
                "parallelism_config_dp_shard_size",
                effect=reads("it times dp_replicate_size must be the number of processes"),
            ),
            key("parallelism_config_tp_size", effect=refuses(SHARED, 1)),
            key("parallelism_config_cp_size", effect=refuses(SHARED, 1)),
            key("parallelism_config_sp_size", effect=refuses(SHARED, 1)),
            key("nproc_per_node", effect=reads("W of one machine")),
            key("nnodes", effect=reads("the number of machines")),
            key("num_gpus", effect=reads("W of one machine")),
            key("num_nodes", effect=reads("the number of machines")),
            key("autotuning", effect=refuses("DeepSpeed's autotuning chooses other batch sizes: remove it")),
            key(
                "elastic_training", effect=refuses("DeepSpeed's elasticity chooses other batch sizes: remove it", False)
            ),
        ),
        *about(
            "how processes start and where they meet",
            keys("""
            quiet cpu multi_gpu tpu gpu_ids same_network main_process_ip
            log_dir role rdzv_backend rdzv_conf
            module no_python tpu_cluster no_tpu_cluster tpu_use_cluster tpu_use_sudo tpu_name
            tpu_zone vm env main_training_function enable_cpu_affinity
            aws_access_key_id aws_secret_access_key debug mpirun_hostfile mpirun_ccl tee
            deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
            deepspeed_multinode_launcher use_xpu help training_script training_script_args"""),
            keys(
                "machine_rank main_process_port max_restarts num_cpu_threads_per_process",
                value="whole",
                least=0,
            ),
            key("monitor_interval", value="number"),
        ),
        *about(
            "precision and compilation",
            key("mixed_precision", choices=("no", "fp16", "bf16", "fp8")),
            keys("""
            downcast_bf16 dynamo_backend dynamo_mode dynamo_use_fullgraph
            dynamo_use_dynamic dynamo_use_regional_compilation fp8_backend
            fp8_use_autocast_during_eval fp8_format
            fp8_amax_compute_algo fp8_override_linear_precision fp8_opt_level
            fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim"""),
            keys("fp8_margin fp8_interval fp8_amax_history_len", value="whole", least=0),
        ),
        *about(
            "DeepSpeed's memory and clipping",
            keys("""
            offload_optimizer_device offload_param_device offload_optimizer_nvme_path
            offload_param_nvme_path zero3_init_flag zero3_save_16bit_model
            deepspeed_moe_layer_cls_names"""),
            key("zero_stage", value="whole", least=0),
            key("gradient_clipping", value="number"),
        ),
        *about(
            "where FSDP's weights and gradients are",
            keys("""
            fsdp_offload_params fsdp_sharding_strategy
            fsdp_reshard_after_forward fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap
            fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params
            fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing
            fsdp_activation_checkpointing_offload"""),
            key("fsdp_version", choices=("1", "2")),
            key("fsdp_min_num_params", value="whole", least=0),
        ),
        *about(
            "how parallelism's sizes are used",
            keys("""
            use_parallelism_config parallelism_config_cp_backend parallelism_config_cp_comm_strategy
            parallelism_config_sp_backend parallelism_config_sp_seq_length
            parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation"""),
        ),
        *about(
            "Megatron-LM, which use_megatron_lm starts",
            keys("""
            megatron_lm_tp_degree megatron_lm_use_custom_fsdp megatron_lm_no_load_optim
            megatron_lm_eod_mask_loss megatron_lm_overlap_cpu_optimizer_d2h_h2d
            megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload
            megatron_lm_use_precision_aware_optimizer megatron_lm_decoder_last_pipeline_num_layers
            megatron_lm_pp_degree megatron_lm_num_micro_batches megatron_lm_sequence_parallelism
            megatron_lm_recompute_activations megatron_lm_use_distributed_optimizer
            megatron_lm_gradient_clipping megatron_lm_recompute_granularity
            megatron_lm_recompute_method megatron_lm_recompute_num_layers
            megatron_lm_attention_backend megatron_lm_expert_model_parallel_size
            megatron_lm_context_parallel_size megatron_lm_attention_dropout
            megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32
            megatron_lm_expert_tensor_parallel_size megatron_lm_calculate_per_token_loss
            megatron_lm_use_rotary_position_embeddings"""),
        ),
    )
)
ACCELERATE_FILE = Rules(
    about(
        "an accelerate file (ClusterConfig)",
        key("compute_environment", choices=("LOCAL_MACHINE", "AMAZON_SAGEMAKER")),
        key(
            "distributed_type",
            choices=(
                "MULTI_GPU", "FSDP", "DEEPSPEED", "NO", "MULTI_CPU", "XLA", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU",
                "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON", "TPU", "MEGATRON_LM", False,
            ),
        ),
        key("mixed_precision", choices=("bf16", "fp16", "fp8", "no", None)),
        keys("num_processes num_machines", value="whole"),
        keys("fsdp_config deepspeed_config parallelism_config", value="section"),
    )
)  # fmt: skip
VARIABLES = Rules(
    (
        *about(
            "what makes the batch",
            key("WORLD_SIZE", effect=reads("W of a script that no launcher starts")),
            key("ACCELERATE_USE_DEEPSPEED", effect=reads("whether DeepSpeed checks its sizes")),
            key("ACCELERATE_USE_FSDP", effect=reads("how gradients are sharded")),
            key(
                "ACCELERATE_DEEPSPEED_CONFIG_FILE", effect=reads("its three sizes must be auto, or equal the Trainer's")
            ),
            key(
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", effect=reads("DeepSpeed's A, which must equal the Trainer's")
            ),
            key("ACCELERATE_USE_PARALLELISM_CONFIG", effect=reads("whether PARALLELISM_CONFIG_* has an effect")),
            key(
                "ACCELERATE_USE_MEGATRON_LM", effect=refuses("Megatron-LM has batch sizes of its own: remove it", False)
            ),
            key(
                "ACCELERATE_USE_SAGEMAKER",
                effect=refuses("planner does not know how SageMaker starts processes: remove it", False),
            ),
            key(
                "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
                effect=refuses("planner does not know how SageMaker starts processes: remove it", "no"),
            ),
            key("SM_HP_MP_PARAMETERS", effect=refuses("SageMaker's model parallelism shares a micro-batch: remove it")),
            key(
                "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
                effect=reads("it times DP_SHARD_SIZE must be the number of processes"),
            ),
            key(
                "PARALLELISM_CONFIG_DP_SHARD_SIZE",
                effect=reads("it times DP_REPLICATE_SIZE must be the number of processes"),
            ),
            key("PARALLELISM_CONFIG_TP_SIZE", effect=refuses(SHARED, 1)),
            key("PARALLELISM_CONFIG_CP_SIZE", effect=refuses(SHARED, 1)),
            key("PARALLELISM_CONFIG_SP_SIZE", effect=refuses(SHARED, 1)),
        ),
        *about(
            "ranks, which the launcher sets",
            keys("RANK LOCAL_RANK LOCAL_WORLD_SIZE"),
        ),
        *about(
            "devices, precision and compilation",
            keys("""
            ACCELERATE_USE_CPU ACCELERATE_TORCH_DEVICE ACCELERATE_CPU_AFFINITY
            ACCELERATE_MIXED_PRECISION ACCELERATE_DOWNCAST_BF16 ACCELERATE_DYNAMO_
            ACCELERATE_DYNAMO_BACKEND ACCELERATE_DYNAMO_MODE ACCELERATE_DYNAMO_USE_DYNAMIC
            ACCELERATE_DYNAMO_USE_FULLGRAPH ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION
            ACCELERATE_FP8_ ACCELERATE_FP8_BACKEND ACCELERATE_FP8_OPT_LEVEL
            ACCELERATE_BYPASS_DEVICE_MAP ACCELERATE_INIT_INCLUDE_BUFFERS ACCELERATE_IN_TPU_POD"""),
        ),
        *about(
            "messages and debugging",
            keys("""
            ACCELERATE_DEBUG_MODE ACCELERATE_DEBUG_RDV_FILE ACCELERATE_ENABLE_RICH
            ACCELERATE_LOG_LEVEL"""),
        ),
        *about(
            "accelerate's own tests and notebooks",
            keys("ACCELERATE_NUM_PROCESSES"),
        ),
        *about(
            "DeepSpeed's memory and clipping",
            keys("""
            ACCELERATE_CONFIG_DS_FIELDS ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES
            ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
            ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
            ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
            ACCELERATE_DEEPSPEED_ZERO3_INIT ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
            ACCELERATE_DEEPSPEED_ZERO_STAGE ACCELERATE_GRADIENT_CLIPPING DEEPSPEED_USE_HPU"""),
        ),
        *about(
            "where FSDP's weights and gradients are",
            keys("""
            FSDP_ACTIVATION_CHECKPOINTING FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD
            FSDP_AUTO_WRAP_POLICY FSDP_BACKWARD_PREFETCH FSDP_CPU_RAM_EFFICIENT_LOADING
            FSDP_FORWARD_PREFETCH FSDP_IGNORED_MODULES FSDP_MIN_NUM_PARAMS FSDP_OFFLOAD_PARAMS
            FSDP_RESHARD_AFTER_FORWARD FSDP_SHARDING_STRATEGY FSDP_STATE_DICT_TYPE
            FSDP_SYNC_MODULE_STATES FSDP_TRANSFORMER_CLS_TO_WRAP FSDP_USE_ORIG_PARAMS FSDP_VERSION"""),
        ),
        *about(
            "how parallelism's sizes are used",
            keys("""
            ACCELERATE_ALLOW_CP_STANDALONE PARALLELISM_CONFIG_CP_BACKEND
            PARALLELISM_CONFIG_CP_COMM_STRATEGY PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION
            PARALLELISM_CONFIG_SP_BACKEND PARALLELISM_CONFIG_SP_SEQ_LENGTH
            PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"""),
        ),
        *about(
            "Python constants of accelerate that look like variables",
            keys("""
            BETA_SP_AVAILABLE_DEEPSPEED_VERSION DEEPSPEED DEEPSPEED_ DEEPSPEED_ENVIRONMENT_NAME
            DEEPSPEED_MULTINODE_LAUNCHERS FSDP_MODEL_NAME FSDP_PYTORCH_VERSION"""),
        ),
    )
)
