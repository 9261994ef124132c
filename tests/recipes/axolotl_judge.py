"""The batch that axolotl 0.19.0 trains of a configuration, computed from its source and not from planner's reader.

Every rule names the function and the file that it follows. Files without a folder are axolotl's, below src/axolotl/.
`axolotl/execute.py` runs axolotl's own functions and compares.
"""

import math
from dataclasses import dataclass

LEGACY_ATTENTION = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
PACKING_ATTENTION = {
    *("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention"),
    *("xformers", "sage"),
    *("kernels-community/flash-attn2", "kernels-community/flash-attn3", "kernels-community/sage-attention"),
}
REMOVED_IF_TRUE = ("max_packed_sequence_len", "rope_scaling", "s2_attention", "flash_attn_rms_norm")
REMOVED = ("dpo_use_logits_to_keep", "dpo_generate_during_eval", "dpo_norm_loss", "rpo_alpha")
EXPERT_PLUGIN = "axolotl.integrations.expert_parallel.ExpertParallelPlugin"


KERNELS_PLUGIN = "axolotl.integrations.kernels.KernelsPlugin"


class Refused(Exception):
    """axolotl, transformers or accelerate refuses the configuration at this number of processes."""


class Unknown(Exception):
    """The batch is not a fact of the configuration."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one optimizer step takes."""

    micro: int
    """rows that a process computes in one forward pass. With sample packing a row is a pack of `sequence_len` tokens"""
    accumulation: int
    ranks: int
    """groups of processes that read different rows"""
    rows: int
    """of one optimizer step"""
    counted: int
    """`cfg.batch_size`, by which axolotl divides the data to find the number of steps. It can differ from `rows`"""
    is_packed: bool


def batch_at(config, processes):
    """The batch of `config` (the mapping that the YAML has) on `processes` processes.

    Raises:
        Refused: the configuration does not start there.
        Unknown: no batch follows from the configuration.
    """
    _refuse_elsewhere(config)
    _refuse(config, processes)
    _refuse_many_processes(config, processes)
    micro, accumulation, batch_size = _sizes(config)
    ranks = _ranks(config, processes)
    counted = batch_size * _counted_processes(config, processes)
    if config.get("auto_find_batch_size") and not config.get("rl"):  # `build` of core/builders/causal.py hands it on
        raise Unknown("auto_find_batch_size halves the micro-batch until it fits in memory")
    micro_rows, accumulation = _accelerator_config(config, micro, accumulation, ranks)
    return Batch(
        micro=micro_rows,
        accumulation=accumulation,
        ranks=ranks,
        rows=micro_rows * accumulation * ranks,
        counted=counted,
        is_packed=bool(config.get("sample_packing")),
    )


def steps_at(config, rows, processes):
    """The number of optimizer steps for `rows` unpacked rows.

    `_prepare_standard_dataset` (utils/data/sft.py), `calculate_total_num_steps` (utils/trainer.py) and
    `load_preference_datasets` (common/datasets.py) divide by `cfg.batch_size`. `_set_base_training_args`
    (core/builders/base.py) gives `cfg.max_steps or total_num_steps` to the Trainer, so a larger `max_steps` wins.
    """
    epochs = float(_field(config, "num_epochs", 1.0))
    return config.get("max_steps") or math.ceil(rows * epochs / batch_at(config, processes).counted)


def _field(config, key, default):
    """The default where the key is absent, and None where it is null.

    The schema (utils/schemas/training.py) has defaults. `validate_config` (utils/config/__init__.py) dumps the model
    with `exclude_none=True`, and `DictDefault` (utils/dict.py) answers None for a key that is not there.
    """
    return config.get(key, default)


def _integer(config, key, default):
    """An integer, or text or a number that is one: what pydantic makes of `int | None`."""
    value = _field(config, key, default)
    if value is None or isinstance(value, int):
        return value
    if float(value) % 1:
        raise Refused(f"{key}: input should be a valid integer")
    return int(float(value))


def _sizes(config):
    """`micro_batch_size`, `gradient_accumulation_steps` and `batch_size` of one process.

    - `check_batch_size_fields`, `check_gas_bsz` (utils/schemas/validation.py)
    - `HyperparametersConfig` (utils/schemas/training.py): both sizes are 1 by default, `batch_size` is None. So
      `batch_size` alone does not derive the accumulation: it stays 1.
    - `normalize_config` (utils/config/__init__.py): accumulation = accumulation or batch_size // micro, and
      batch_size = batch_size or micro * accumulation. The first applies to `gradient_accumulation_steps: null` alone.
    """
    if not (config.get("micro_batch_size") or config.get("gradient_accumulation_steps")) and config.get("batch_size"):
        raise Refused("At least two of micro_batch_size, gradient_accumulation_steps, batch_size must be set")
    if config.get("gradient_accumulation_steps") and config.get("batch_size"):
        raise Refused("please set only one of gradient_accumulation_steps or batch_size")
    micro = _integer(config, "micro_batch_size", 1)
    accumulation = _integer(config, "gradient_accumulation_steps", 1)
    batch_size = _integer(config, "batch_size", None)
    if not micro or (not accumulation and not batch_size):
        raise Refused(f"micro_batch_size {micro!r} and gradient_accumulation_steps {accumulation!r}")
    accumulation = accumulation or batch_size // micro
    if accumulation < 1:
        raise Refused(f"batch_size {batch_size} // micro_batch_size {micro} is {accumulation}")
    return micro, accumulation, batch_size or micro * accumulation


def _counted_processes(config, processes):
    """By what `normalize_config` (utils/config/__init__.py) multiplies `batch_size`.

    `ddp` is true by default on more than one process. Without it and without FSDP the product is left out.
    """
    is_ddp = processes != 1 if config.get("ddp") is None else config["ddp"]
    if processes == 1 or not (is_ddp or _is_fsdp(config)):
        return 1
    return processes // _context(config) // _tensor(config)


def _accelerator_config(config, micro, accumulation, ranks):
    """What `accelerator_config` changes.

    - `split_batches`: `prepare_data_loader` (accelerate/data_loader.py) and `BatchSamplerShard.__init__` split one
      batch over the ranks, which must divide it.
    - `gradient_accumulation_kwargs.num_steps`: `Trainer.create_accelerator_and_postprocess`
      (transformers/trainer.py) takes it where the accumulation is 1.
    """
    of_accelerate = config.get("accelerator_config") or {}
    if steps := (of_accelerate.get("gradient_accumulation_kwargs") or {}).get("num_steps"):
        if accumulation > 1:
            raise Refused("num_steps is set but gradient_accumulation_steps is greater than 1")
        accumulation = steps
    if of_accelerate.get("split_batches"):
        if (1 if _is_one_pack(config) else micro) % ranks:
            raise Refused(f"split_batches: {micro} rows on {ranks} ranks")
        micro //= ranks
    return micro, accumulation


def _is_one_pack(config):
    """Whether a micro-batch is one pack of `micro_batch_size * sequence_len` tokens.

    `_create_multipack_sampler` (core/trainers/base.py) and `build` (core/builders/causal.py): else it is
    `micro_batch_size` packs of `sequence_len` tokens. `attn_supports_packing` (utils/schemas/config.py) decides where
    `multipack_real_batches` is not set.
    """
    if not config.get("sample_packing"):
        return False
    if config.get("multipack_real_batches") is not None:
        return not config["multipack_real_batches"]
    return _bare(_attention(config)) in PACKING_ATTENTION


def _bare(attention):
    """`attn_impl_base` (utils/schemas/enums.py): without `@revision` and `:kernel`."""
    return (attention or "").split(":", 1)[0].split("@", 1)[0].strip()


def _refuse(config, processes):
    """The checks of utils/schemas/validation.py that look at sizes or at the kind of training.

    `check_dataset_or_pretraining_dataset`, `check_sample_packing_w_rl`, `check_kto_config`,
    `check_context_parallel_size`, `check_grpo_batch_size_divisibility`. And `KTOTrainer.__init__`
    (trl/trainer/kto_trainer.py), whose loss is always "kto" here.
    """
    kind, is_packed, attention = config.get("rl"), config.get("sample_packing"), _attention(config)
    if config.get("datasets") is None and config.get("pretraining_dataset") is None:
        raise Refused("either datasets or pretraining_dataset is required")
    if kind and is_packed:
        raise Refused("`sample_packing: true` does not work with RLHF training")
    if kind == "kto" and (config.get("eval_sample_packing") or config.get("remove_unused_columns") is not False):
        raise Refused("Set `remove_unused_columns: False` when using kto")
    if kind == "kto" and _integer(config, "micro_batch_size", 1) == 1:
        raise Refused("KTO's KL term needs more than one row in a micro-batch")
    if config.get("pretraining_dataset") or config.get("streaming"):
        _refuse_streamed(config)
    own = config.get("use_glm_dsa_kernels") and KERNELS_PLUGIN in (config.get("plugins") or ())
    if _context(config) > 1 and not own:
        if _bare(attention) != "flash_attention_2":
            raise Refused("context_parallel_size > 1 requires attn_implementation: flash_attention_2")
        if is_packed and (_integer(config, "micro_batch_size", 1) or 0) > 1:
            raise Refused("micro_batch_size must be set to 1 when sample_packing is enabled")
    if kind == "grpo" and (count := (config.get("trl") or {}).get("num_generations")) is not None:
        _refuse_groups(config, count, processes)


def _refuse_many_processes(config, processes):
    """Checks that refuse more than one process.

    `check_rl_config_gradient_checkpointing` (utils/schemas/validation.py) and `check_multigpu_lora_kernels`
    (utils/schemas/config.py).
    """
    if processes == 1:
        return
    is_reentrant = (config.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant")
    is_qlora = config.get("adapter") == "qlora" and config.get("load_in_4bit")
    if config.get("rl") and config.get("gradient_checkpointing") and is_reentrant and is_qlora:
        raise Refused("`use_reentrant: True` is not supported for distributed RL training with QLoRA")
    has_kernel = any(config.get(f"lora_{name}_kernel") for name in ("mlp", "qkv", "o", "embedding"))
    if has_kernel and config.get("fsdp_config") is not None and str(config.get("fsdp_version")) != "2":
        raise Refused("lora_mlp_kernel, lora_qkv_kernel, and lora_o_kernel are not compatible with FSDP1.")


def _refuse_elsewhere(config):
    """Checks that have nothing to do with a batch, and that examples of the same release do not pass.

    `AxolotlInputConfig` (utils/schemas/config.py): `tokens` is a list, `warmup_steps` an integer, and
    `check_save_strategy_best_requires_metric`. `check_early_stopping` (utils/schemas/validation.py).
    `DeprecatedParameters` (utils/schemas/deprecated.py) raises for keys that were removed.
    """
    removed = [key for key in REMOVED_IF_TRUE if config.get(key)]
    removed += [key for key in REMOVED if config.get(key) is not None]
    if removed:
        raise Refused(f"{removed[0]} is no longer supported")
    if isinstance(config.get("tokens"), dict):
        raise Refused("tokens: input should be a valid list")
    if isinstance(steps := config.get("warmup_steps"), float) and steps % 1:
        raise Refused("warmup_steps: input should be a valid integer")
    if config.get("save_strategy") == "best" and not config.get("metric_for_best_model"):
        raise Refused("save_strategy: 'best' requires metric_for_best_model to be set")
    saves, evals = config.get("save_steps"), config.get("eval_steps")
    if config.get("early_stopping_patience") and not (saves and evals and saves % evals == 0):
        raise Refused("`early_stopping_patience` requires save_steps and eval_steps to be set")


def _refuse_streamed(config):
    """`check_pretraining_w_max_steps`, `check_streaming_w_max_steps` and the same two for `val_set_size`.

    All are in utils/schemas/validation.py.
    """
    if not config.get("max_steps"):
        raise Refused("max_steps must be set when using streaming datasets")
    if config.get("val_set_size"):
        raise Refused("val_set_size is not supported with streaming datasets")


def _refuse_groups(config, count, processes):
    """`check_grpo_batch_size_divisibility` (utils/schemas/validation.py). It does not multiply by the processes."""
    of_a_process = int(config.get("micro_batch_size") or 1) * int(config.get("gradient_accumulation_steps") or 1)
    completions = int(config["trl"].get("generation_batch_size") or of_a_process)
    if count < 2 or completions % count:
        raise Refused(f"{completions} completions are not groups of {count}")
    if processes > 1 and completions < count * processes:
        raise Refused(f"{completions} completions are less than {count} * {processes}")


def _attention(config):
    """`normalize_attn_implementation` (utils/schemas/config.py): old switches name a backend."""
    old = [name for key, name in LEGACY_ATTENTION.items() if config.get(key)]
    if old and config.get("attn_implementation"):
        raise Refused(f"attn_implementation={config['attn_implementation']!r} and legacy attention flags")
    return config.get("attn_implementation") or (old[0] if old else None)


def _context(config):
    """`check_context_parallel_size` (utils/schemas/validation.py): `sequence_parallel_degree` is the old name."""
    return config.get("context_parallel_size") or config.get("sequence_parallel_degree") or 1


def _tensor(config):
    """`check_tensor_parallel_size` (utils/schemas/validation.py)."""
    return config.get("tensor_parallel_size") or 1


def _expert(config):
    """`ExpertParallelArgs` (integrations/expert_parallel/args.py), which the schema has with the plugin alone."""
    return config.get("expert_parallel_size") or 1 if EXPERT_PLUGIN in (config.get("plugins") or ()) else 1


def _is_fsdp(config):
    return bool(config.get("fsdp") or config.get("fsdp_config"))


def _ranks(config, processes):
    """How many groups of processes read different rows.

    - `_get_parallel_config_kwargs` (utils/distributed.py), which the loader of the model calls, refuses sizes.
    - `setup_parallelism_envs` (utils/trainer.py) hands the sizes of the configuration to accelerate. A size that is
      not named stays 1 there. `ParallelismConfig.__post_init__` and `_validate_accelerator`
      (accelerate/parallelism_config.py) want their product to be the number of processes.
    - `prepare_data_loader` (accelerate/data_loader.py) gives the same rows to the processes of one tensor or context
      group, and axolotl's patch of it (monkeypatch/accelerate/parallelism_config.py) different rows to experts.
    - `_resolve_ep_group` (integrations/expert_parallel/plugin.py) refuses sizes.
    """
    shard, replicate = config.get("dp_shard_size"), config.get("dp_replicate_size")
    tensor, context, expert = _tensor(config), _context(config), _expert(config)
    _refuse_in_loader(config, processes)
    if expert > 1 and expert * (shard or 1) * tensor * context != processes:
        raise Refused(f"expert_parallel_size {expert} and its other axes on {processes} processes")
    if expert > 1 and tensor > 1:
        raise Refused("EP x TP composition not yet supported")
    if max(tensor, context, shard or 1, replicate or 1) == 1:
        return processes
    if max(tensor, context) > 1 and (replicate or 1) > 1 and (shard or 1) == 1:
        raise Refused("tensor or context parallelism cannot be used with pure data parallelism")
    total = tensor * context * (shard or 1) * (replicate or 1) * expert
    if total != processes:
        raise Refused(f"ParallelismConfig total_size ({total}) does not match num_processes ({processes})")
    if config.get("deepspeed") and context > 1:
        raise Unknown("under DeepSpeed accelerate deals different rows to the processes of one context group")
    return processes // tensor // context


def _refuse_in_loader(config, processes):
    """`_get_parallel_config_kwargs` (utils/distributed.py)."""
    shard, replicate = config.get("dp_shard_size"), config.get("dp_replicate_size")
    if processes % _expert(config):
        raise Refused(f"expert_parallel_size ({_expert(config)}) must divide world_size ({processes})")
    left = processes // _expert(config) // _tensor(config) // _context(config)
    has_shard = shard is None and replicate in {None, 1} and left > 1
    if has_shard:
        left = 1
    left //= replicate or 1
    if left > 1 and (shard or 1) > 1:
        if not _is_fsdp(config):
            raise Refused("dp_shard_size was configured without a corresponding fsdp_config!")
        has_shard = True
        left //= shard
        if (replicate or 1) == 1:
            left = 1
    if left > 1 and (has_shard or not _is_fsdp(config)):
        raise Refused(f"The configured parallelisms are incompatible with the current world size ({processes})!")
