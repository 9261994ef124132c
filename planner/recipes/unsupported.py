"""Recognises training systems that planner does not read, so that a refusal names the right one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from planner.files.messages import cut

# A single key may belong to any system, unless it is one of `own`.
_FEWEST_KEYS = 2
_MOST_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class UnsupportedSystem:
    """A system, with keys and programs that are typical of it. No system that planner reads has these keys."""

    name: str
    keys: frozenset[str] = frozenset()
    """two of them name the system"""
    own: frozenset[str] = frozenset()
    """keys that no other system has, so that one names it"""
    program: re.Pattern[str] | None = None
    """matches its programs in the text of a command"""


def _system(name: str, keys: str = "", program: str = "", own: str = "") -> UnsupportedSystem:
    return UnsupportedSystem(
        name=name,
        keys=frozenset(keys.split()),
        own=frozenset(own.split()),
        program=re.compile(program) if program else None,
    )


UNSUPPORTED = (
    _system(
        "LLaMA-Factory's trainer v1",
        "train_dataset dist_config kernel_config sample_backend batching_strategy model_class peft_config cutoff_len",
        r"\bUSE_V1=|\bllamafactory-cli\s+(?:sft|dpo|rm)\b",
    ),
    _system(
        "OpenRLHF",
        "micro_train_batch_size micro_rollout_batch_size rollout_batch_size pretrain reward_pretrain zero_stage "
        "max_epochs actor_learning_rate critic_learning_rate ckpt_path input_key n_samples_per_prompt "
        "apply_chat_template prompt_max_len generate_max_len init_kl_coef save_path",
        r"\bopenrlhf\.cli\.\w+",
    ),
    _system(
        "verl",
        "actor_rollout_ref critic.ppo_micro_batch_size_per_gpu data.train_batch_size data.max_response_length "
        "data.micro_batch_size_per_gpu algorithm.adv_estimator trainer.n_gpus_per_node trainer.total_epochs "
        "trainer.nnodes model.partial_pretrain worker.actor worker.rollout data.rollout_batch_size",
        r"\bverl\.trainer\.\w+|\bverl/trainer/",
    ),
    _system(
        "SimPO or a fork of its trainer",
        "sft_weight trainer_type rho ema_momentum beta_min ln",
        r"\brun_simpo\.py\b",
        own="gamma_beta_ratio",
    ),
    _system(
        "Open-Instruct",
        "use_flash_attn tokenizer_name use_slow_tokenizer max_train_samples checkpointing_steps with_tracking add_bos "
        "dataset_mix_dir keep_last_n_checkpoints use_lora low_cpu_mem_usage reduce_loss dpo_loss_type dpo_beta "
        "clip_grad_norm try_launch_beaker_eval_jobs try_auto_save_to_beaker gs_bucket_path hf_metadata_dataset",
        r"\bopen_instruct[./]\w+",
        own="dataset_mixer_list dataset_mixer_eval_list dataset_mixer_list_splits dataset_transform_fn",
    ),
    _system(
        "Online-RLHF of RLHFlow",
        "train_dir eval_dir ref_model choose_type mask_prompt margin_scale eos_padding eot_token len_penalty "
        "max_training_samples optimizer_type",
        r"\bdpo_iteration/run_dpo\.py\b",
    ),
    _system(
        "Open R1 with settings of its own rewards",
        "dataset_prompt_column code_language code_eval_test_batch_size code_eval_scoring_mode code_provider "
        "parallel_code_exec_per_proc e2b_router_url morph_router_url cosine_min_value_wrong cosine_max_value_wrong "
        "cosine_min_value_correct cosine_max_value_correct cosine_max_len repetition_n_grams repetition_max_penalty "
        "max_completion_len soft_punish_cache",
    ),
    _system(
        "LMFlow",
        "dataset_path disable_group_texts arch_type conversation_template use_lisa lisa_activated_layers "
        "lisa_interval_steps sampling_paired_method validation_split_percentage block_size",
        r"\blmflow\b",
    ),
    _system(
        "nanotron",
        "tokens.batch_accumulation_per_replica tokens.micro_batch_size tokens.sequence_length parallelism.dp "
        "parallelism.pp parallelism.tp checkpoints.checkpoint_interval general.project optimizer.zero_stage",
        r"\bnanotron\b|\brun_train\.py\b(?=[^\n]*--config-file\b)",
    ),
    _system(
        "AutoTrain",
        "project_name backend data.column_mapping data.chat_template params.block_size params.mixed_precision "
        "params.peft hub.username",
        r"\bautotrain\s+(?:llm|--config)",
    ),
    _system(
        "trlX",
        "train.total_steps train.seq_length train.trainer train.pipeline model.num_layers_unfrozen method.ppo_epochs "
        "method.init_kl_coef method.num_rollouts method.chunk_size",
    ),
    _system(
        "Oumi",
        "training.trainer_type data.train.datasets training.max_steps training.enable_gradient_checkpointing "
        "model.model_max_length training.per_device_train_batch_size",
        r"\boumi\s+(?:distributed|train)\b",
    ),
    _system(
        "lingua",
        "dump_dir async_eval_gpus distributed.fsdp_type data.root_dir optim.lr_min_ratio checkpoint.dump profiling.run",
        r"\bapps\.(?:main|mamba|mtp|minGRU)\.train\b",
    ),
    _system(
        "Unsloth Studio",
        "training_type use_loftq finetune_vision_layers finetune_language_layers finetune_attention_modules "
        "finetune_mlp_modules vision_all_linear train_on_completions",
        r"\bunsloth-cli\.py\b",
    ),
    _system(
        "MLX LM",
        "iters val_batches steps_per_report steps_per_eval adapter_path grad_checkpoint lora_parameters lora_layers "
        "resume_adapter_file test_batches",
        r"\bmlx_lm\b",
    ),
    _system(
        "Tinker",
        "renderer_name lora_rank load_checkpoint_path",
        r"\btinker_cookbook\b",
    ),
    _system(
        "nanoGPT",
        "block_size n_layer n_head n_embd always_save_checkpoint init_from wandb_log decay_lr max_iters lr_decay_iters "
        "warmup_iters",
        r"\btrain\.py\s+(?:\S*/)?(?:config/)?(?:train|finetune)_\w+\.py\b",
    ),
    _system(
        "nanochat",
        "depth device_batch_size total_batch_size target_param_data_ratio",
        r"\bscripts\.(?:base_train|mid_train|chat_sft|chat_rl)\b",
    ),
    _system(
        "Lightning",
        "seed_everything trainer.max_epochs trainer.devices trainer.accelerator trainer.strategy trainer.precision "
        "trainer.accumulate_grad_batches trainer.callbacks trainer.gradient_clip_val model.class_path data.class_path",
    ),
    _system(
        "LitGPT",
        "checkpoint_dir train.micro_batch_size train.global_batch_size train.lr_warmup_steps out_dir "
        "train.max_seq_length train.save_interval",
        r"\blitgpt\s+(?:pretrain|finetune\w*)\b",
    ),
    _system(
        "torchtitan",
        "job.dump_folder model.flavor training.seq_len training.local_batch_size training.global_batch_size "
        "training.steps training.max_norm parallelism.data_parallel_shard_degree parallelism.tensor_parallel_degree "
        "parallelism.data_parallel_replicate_degree profiling.enable_profiling metrics.log_freq "
        "activation_checkpoint.mode lr_scheduler.warmup_steps job.config_file",
        r"\btorchtitan\.(?:train|\w+)\b|\btorchtitan/train\.py\b|\brun_train\.sh\b",
    ),
    _system(
        "FastChat, Stanford Alpaca or LLaVA",
        "data_path model_max_length lazy_preprocess vision_tower mm_projector_type mm_projector_lr tune_mm_mlp_adapter "
        "pretrain_mm_mlp_adapter mm_vision_select_layer mm_use_im_start_end eval_data_path",
        r"\b(?:fastchat|llava)[./]train\b",
    ),
    _system(
        "DeepSpeedExamples",
        "data_split max_seq_len data_output_path only_optimize_lora lora_module_name lora_dim deepspeed_config "
        "actor_model_name_or_path critic_model_name_or_path num_padding_at_beginning deepspeed_mpi",
        r"\bDeepSpeedExamples\b|\bDeepSpeed-Chat\b",
    ),
    _system(
        "an example of transformers",
        "dataset_config_name validation_split_percentage train_file validation_file config_name config_overrides "
        "use_fast_tokenizer max_eval_samples model_type tokenizer_name max_train_samples low_cpu_mem_usage",
        program=r"\brun_(?:clm|fim|mlm|plm)(?:_no_trainer)?\.py\b",
    ),
    _system(
        "an example of Liger Kernel",
        program=r"\btraining(?:_multimodal)?\.py\b(?=[^\n]*\s--use_liger\b)",
    ),
    _system(
        "Megatron-LM",
        "micro_batch_size global_batch_size num_layers hidden_size num_attention_heads seq_length "
        "max_position_embeddings train_iters tensor_model_parallel_size pipeline_model_parallel_size vocab_file",
        r"\bpretrain_(?:gpt|bert|t5|mamba)\.py\b",
    ),
    _system(
        "GPT-NeoX",
        "pipe_parallel_size model_parallel_size num_layers hidden_size num_attention_heads seq_length train_iters "
        "lr_decay_iters partition_activations pipe-parallel-size model-parallel-size",
        r"\bdeepy\.py\b",
    ),
    _system(
        "NeMo",
        "exp_manager model.micro_batch_size model.global_batch_size model.tensor_model_parallel_size "
        "model.pipeline_model_parallel_size trainer.num_nodes model.data.train_ds",
    ),
    _system(
        "LLM Foundry",
        "global_train_batch_size device_train_microbatch_size max_duration train_loader eval_first max_seq_len "
        "device_eval_batch_size eval_loader",
        r"^\s*composer\s",
    ),
    _system("ms-swift with Megatron", program=r"(?:^|\s)megatron\s+(?:sft|rlhf|pt)\b"),
    _system(
        "Medusa, or Liger Kernel's example of it",
        "medusa_num_heads medusa_num_layers medusa_return medusa_only_heads medusa_heads_coefficient "
        "medusa_decay_coefficient medusa_lr_multiplier medusa_scheduler",
        r"\bmedusa/train/",
    ),
)


def by_keys(keys: Iterable[str]) -> tuple[UnsupportedSystem, list[str]] | None:
    """The system with most of the dotted keys, and those keys. None if no system has two of them, or one of its own."""
    names = list(dict.fromkeys(part for key in keys for part in _with_sections(key)))
    found = [(each, [name for name in names if name in each.keys | each.own]) for each in UNSUPPORTED]
    named = [(each, marks) for each, marks in found if len(marks) >= _FEWEST_KEYS or not each.own.isdisjoint(marks)]
    return max(named, key=lambda pair: len(pair[1]), default=None)


def by_program(text: str) -> UnsupportedSystem | None:
    """The system whose program a command starts, None if there is none."""
    return next((each for each in UNSUPPORTED if each.program and each.program.search(text)), None)


def option_names(arguments: Iterable[str]) -> list[str]:
    """The names of options: `--micro-batch-size=4`, `+data.seed=1` -> `micro_batch_size`, `data.seed`."""
    named = (re.match(r"(--|\++)?([A-Za-z_][\w.-]*)(=)?", argument) for argument in arguments)
    return [found[2].replace("-", "_") for found in named if found and (found[1] or found[3])]


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """The unsupported system that a recipe looks like."""

    name: str
    why: str
    """the program or the keys by which it was recognised"""

    @property
    def text(self) -> str:
        """The refusal of a recipe of this system, to which `systems.not_read` adds what planner reads."""
        return f"this looks like {self.name} ({self.why}), which planner does not read"


def known_by(program: str, keys: Iterable[str]) -> Likeness | None:
    """The unsupported system whose program or keys these are, None if there is none."""
    if system := by_program(program):
        found = system.program.search(program) if system.program else None
        return Likeness(name=system.name, why=cut(found[0].strip() if found else "", 80))
    if of_keys := by_keys(keys):
        system, own = of_keys
        return Likeness(name=system.name, why=cut(", ".join(own[:_MOST_SHOWN]), 120))
    return None


def _with_sections(key: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`."""
    parts = key.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]
