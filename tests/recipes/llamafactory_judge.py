"""What LLaMA-Factory 0.9.5 trains per optimizer step, computed from a configuration as its source does.

Written from the source of llamafactory 0.9.5, transformers 5.6.0 and mcore_adapter (alibaba/ROLL), and not from
planner's reader. Each rule names the function and the file that it was read in. `llamafactory/execute.py` compares it
with LLaMA-Factory's own code.

It knows batches, not packages: a recipe that needs a package that is not installed is not refused here.
"""

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

FOLDER = Path(__file__).parent / "llamafactory"
STAGES = {"pt", "sft", "rm", "ppo", "dpo", "kto"}
TUNINGS = {"lora", "oft", "freeze", "full"}
DISTRIBUTED_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")


class Refused(Exception):
    """LLaMA-Factory stops before the first step. The message says why, and where in its source."""


class Unfixed(Exception):
    """The count of samples per step is not a number that the configuration fixes."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    samples: int
    """per optimizer step, in `unit`, over all processes"""
    micro: int
    accumulation: int
    replicas: int
    """data-parallel replicas"""
    unit: str
    """rows, packed rows, blocks (of cutoff_len tokens), pairs or rollouts"""


def load(path, overrides=()):
    """The configuration of a file with the overrides of a command line: hparams/parser.py, read_args."""
    merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_cli(list(overrides)))
    return OmegaConf.to_container(merged)


def batch_at(config, gpus, *, launcher="llamafactory-cli", environment=None, root=FOLDER):
    """The Batch of a configuration on `gpus` GPUs of one node, or of as many processes as a launcher was told to start.

    `launcher` is llamafactory-cli, torchrun, accelerate, deepspeed or python (which starts src/train.py by itself).
    Paths in the configuration are below `root`.

    Raises:
        Refused: LLaMA-Factory refuses the configuration at this size.
        Unfixed: the configuration does not fix the count.
    """
    variables = environment or {}
    if launcher == "llamafactory-cli" and _on(variables, "USE_V1"):  # cli.py, main
        return _v1(config, gpus, distributed=_launches_torchrun(variables, gpus))
    if _on(variables, "USE_MCA"):
        return _mca(config, gpus)
    _parse(config, variables)
    if _on(variables, "USE_RAY"):  # train/tuner.py, run_exp and _ray_training_function. Each worker has its rank
        replicas = config.get("ray_num_workers", 1)
        if replicas > gpus:
            raise Refused(f"{replicas} Ray workers on {gpus} GPUs: train/tuner.py, _ray_training_function")
        return _trained(config, replicas, distributed=True, root=root)
    distributed = launcher in DISTRIBUTED_LAUNCHERS
    if launcher == "llamafactory-cli":
        distributed = _launches_torchrun(variables, gpus)
    if not distributed and gpus > 1:
        if config.get("use_kt"):
            raise Unfixed("one process of KTransformers sees all GPUs")
        raise Refused("several GPUs in one process: hparams/parser.py, get_train_args, ParallelMode.NOT_DISTRIBUTED")
    return _trained(config, gpus, distributed=distributed, root=root)


def _on(variables, name):
    """extras/misc.py, is_env_enabled."""
    return variables.get(name, "0").lower() in {"true", "y", "1"}


def _launches_torchrun(variables, gpus):
    """launcher.py and v1/launcher.py, launch."""
    several = gpus > 1 and not _on(variables, "USE_RAY") and not _on(variables, "USE_KT")
    return _on(variables, "FORCE_TORCHRUN") or several


@cache
def known_keys():
    """Key -> default, of the five classes of hparams/parser.py, _TRAIN_ARGS."""
    with (FOLDER / "keys.csv").open() as file:
        return {row["key"]: row["default"] for row in csv.DictReader(file)}


def _parse(config, variables):
    """hparams/parser.py, _parse_args: HfArgumentParser.parse_dict refuses keys that no class has."""
    unknown = sorted(config.keys() - known_keys().keys())
    if unknown and not _on(variables, "ALLOW_EXTRA_ARGS"):
        raise Refused(f"keys that are not used by the HfArgumentParser: {unknown}")


def _trained(config, replicas, *, distributed, root):
    """The batch of transformers' Trainer, which all stages but ppo use."""
    _refuse_arguments(config)
    _refuse_run(config)
    _refuse_optimizer(config, distributed=distributed)
    if config.get("auto_find_batch_size"):
        raise Unfixed("auto_find_batch_size")
    if config.get("parallelism_config") or config.get("use_hyper_parallel"):
        raise Unfixed("parallelism_config, use_hyper_parallel: not computed here")
    micro, steps = config.get("per_device_train_batch_size", 8), config.get("gradient_accumulation_steps", 1)
    # The values of a file are not converted. torch/utils/data/sampler.py, BatchSampler, and the Trainer's divisions
    for size in (micro, steps):
        _refuse((not isinstance(size, int) or isinstance(size, bool) or size < 1, f"{size!r} is no count"))
    accelerator = config.get("accelerator_config") or {}
    # transformers/trainer.py, create_accelerator_and_postprocess
    inner = (accelerator.get("gradient_accumulation_kwargs") or {}).get("num_steps")
    _refuse((inner is not None and steps > 1, "num_steps of accelerator_config and gradient_accumulation_steps"))
    steps = steps if inner is None else inner
    if accelerator.get("split_batches"):
        # accelerate/data_loader.py, BatchSamplerShard.__init__: the micro-batch is divided, not multiplied
        if micro % replicas:
            raise Refused(f"split_batches: {micro} rows do not divide by {replicas} processes")
        return Batch(
            samples=micro * steps, micro=micro // replicas, accumulation=steps, replicas=replicas, unit=_unit(config)
        )
    if path := config.get("deepspeed"):
        _match_deepspeed(json.loads((root / path).read_text()), micro, steps, replicas)
    # transformers/trainer.py, get_total_train_batch_size
    return Batch(
        samples=micro * steps * replicas, micro=micro, accumulation=steps, replicas=replicas, unit=_unit(config)
    )


def _unit(config):
    """What a row of the training set is: data/loader.py, _get_dataset_processor."""
    stage = config.get("stage", "sft")
    packing = config.get("neat_packing") or config.get("packing")
    if stage == "pt":  # hparams/parser.py, get_train_args: packing is on unless the recipe says false
        return "rows" if packing is False else "blocks"
    if stage == "sft":
        return "packed rows" if packing else "rows"
    # data/collator.py, PairwiseDataCollatorWithPadding: m pairs are 2 m sequences
    return {"dpo": "pairs", "rm": "pairs", "kto": "rows", "ppo": "rollouts"}[stage]


def _match_deepspeed(settings, micro, steps, replicas):
    """transformers/integrations/deepspeed.py, HfTrainerDeepSpeedConfig.trainer_config_process and finalize."""
    if settings.get("tensor_parallel", {}).get("autotp_size", 1) != 1:
        raise Unfixed("tensor_parallel.autotp_size: not computed here")
    wanted = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "train_batch_size": micro * steps * replicas,
    }
    for key, value in wanted.items():
        if settings.get(key, "auto") not in {"auto", value}:
            raise Refused(f"DeepSpeed's {key} is {settings[key]}, the recipe's is {value}")


def _refuse_arguments(config):
    """The checks of DataArguments and FinetuningArguments: hparams/data_args.py, hparams/finetuning_args.py."""
    stage, tuning = config.get("stage", "sft"), config.get("finetuning_type", "lora")
    held_out, evaluated = config.get("val_size", 0) > 1e-6, config.get("eval_dataset")
    probs = config.get("interleave_probs")
    uneven = [key for key in ("dataset", "eval_dataset") if config.get(key) is not None
              and len(_split(config[key])) != len(_split(probs or ""))]  # fmt: skip
    special = [key for key in ("use_galore", "use_apollo", "use_badam") if config.get(key)]
    _refuse(
        (stage not in STAGES, f"stage {stage}"),  # train/tuner.py, _training_function
        (tuning not in TUNINGS, f"finetuning_type {tuning}"),
        (evaluated and held_out, "val_size and eval_dataset"),
        (config.get("dataset") is None and held_out, "val_size without a dataset"),
        (config.get("streaming") and 1e-6 < config.get("val_size", 0) < 1, "streaming: val_size must be a count"),
        (config.get("streaming") and config.get("max_samples") is not None, "streaming and max_samples"),
        (config.get("mask_history") and config.get("train_on_prompt"), "mask_history and train_on_prompt"),
        (probs is not None and config.get("mix_strategy", "concat") == "concat", "interleave_probs with concat"),
        (probs is not None and uneven, f"as many interleave_probs as {uneven}"),
        (stage == "ppo" and config.get("reward_model") is None, "ppo without reward_model"),
        (tuning == "lora" and special, f"{special} with LoRA"),
        (len(special) > 1, f"{special} together"),
        (tuning != "lora" and config.get("use_dora"), "use_dora without LoRA"),
        (tuning != "lora" and config.get("loraplus_lr_ratio") is not None, "loraplus_lr_ratio without LoRA"),
    )


def _split(names):
    """hparams/data_args.py, split_arg."""
    return names.split(",") if isinstance(names, str) else names


def _refuse_run(config):
    """The checks of hparams/parser.py, get_train_args and _verify_model_args, which know nothing of processes."""
    stage, tuning = config.get("stage", "sft"), config.get("finetuning_type", "lora")
    evaluates = config.get("do_eval") or config.get("eval_strategy", "no") != "no"
    can_evaluate = config.get("eval_dataset") is not None or config.get("val_size", 0) >= 1e-6
    quantized = config.get("quantization_bit") is not None
    # transformers/training_args.py, __post_init__: IntervalStrategy(False) and SaveStrategy(None) are ValueErrors
    strategies = [config.get(f"{name}_strategy", "no") for name in ("eval", "save", "logging")]
    _refuse(
        (not all(each in {"no", "steps", "epoch", "best"} for each in strategies), f"strategies {strategies}"),
        (config.get("model_name_or_path") is None, "no model_name_or_path"),
        (not config.get("do_train"), "do_train is off: nothing is trained"),
        (config.get("dataset") is None, "do_train without a dataset"),
        (stage != "sft" and config.get("neat_packing"), "neat_packing outside of sft"),
        (stage != "sft" and (config.get("train_on_prompt") or config.get("mask_history")), "mask outside of sft"),
        (config.get("streaming") and config.get("max_steps", -1) == -1, "streaming without max_steps"),
        (evaluates and not can_evaluate, "evaluation without eval_dataset or val_size"),
        (quantized and tuning not in {"lora", "oft"}, "quantization_bit without LoRA or OFT"),
        (quantized and config.get("fp8"), "fp8 and quantization_bit"),
        (config.get("adapter_name_or_path") is not None and tuning != "lora", "an adapter without LoRA"),
    )


def _refuse_optimizer(config, *, distributed):
    """hparams/parser.py, get_train_args; train/trainer_utils.py, _create_galore_optimizer, _create_apollo_optimizer."""
    steps, deepspeed = config.get("gradient_accumulation_steps", 1), config.get("deepspeed")
    layerwise = [name for name in ("galore", "apollo") if config.get(f"use_{name}") and config.get(f"{name}_layerwise")]
    badam = config.get("use_badam")
    _refuse(
        (deepspeed and not distributed, "DeepSpeed without FORCE_TORCHRUN=1"),
        (deepspeed and (config.get("use_galore") or config.get("use_apollo")), "GaLore or APOLLO with DeepSpeed"),
        (layerwise and distributed, f"layer-wise {layerwise} in several processes"),
        (layerwise and steps != 1, f"layer-wise {layerwise} with gradient accumulation"),
        (badam and distributed and config.get("badam_mode") == "ratio", "BAdam by ratio in several processes"),
        (badam and distributed and "z3" not in str(deepspeed), "layer-wise BAdam without DeepSpeed ZeRO-3"),
    )


def _refuse(*cases):
    for holds, reason in cases:
        if holds:
            raise Refused(reason)


def _mca(config, gpus):
    """Megatron by mcore_adapter, behind USE_MCA=1: mcore_adapter/trainer/trainer.py, _prepare_train_loop.

    Megatron's core/parallel_state.py, initialize_model_parallel, checks that the sizes divide the processes. Experts
    are spread over the data-parallel processes, and so leave the batch as it is.
    """
    tensor, pipeline, context, expert = (
        config.get(f"{name}_parallel_size") or 1
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    if gpus % (tensor * pipeline * context):
        raise Refused(f"{gpus} processes do not divide by {tensor} x {pipeline} x {context}")
    expert_tensor = config.get("expert_tensor_parallel_size") or tensor
    if gpus % (expert_tensor * expert * pipeline):
        raise Refused(f"{gpus} processes do not divide by {expert_tensor} x {expert} x {pipeline}, for the experts")
    replicas = gpus // (tensor * pipeline * context)
    micro, steps = config.get("per_device_train_batch_size", 8), config.get("gradient_accumulation_steps", 1)
    return Batch(
        samples=micro * steps * replicas, micro=micro, accumulation=steps, replicas=replicas, unit=_unit(config)
    )


def _v1(config, gpus, *, distributed):
    """The new trainer behind USE_V1=1, which has other keys: v1/core/utils/batching.py, BatchGenerator.__init__."""
    attention, strategy = config.get("flash_attn", "sdpa"), config.get("batching_strategy", "normal")
    if attention not in {"eager", "sdpa", "flash_attention_2"}:  # v1/config/model_args.py, ModelArguments.__post_init__
        raise Refused(f"flash_attn {attention}")
    if strategy == "dynamic_batching" and (config.get("max_steps") or 0) <= 0:  # v1/config/training_args.py
        raise Refused("dynamic_batching without max_steps")
    replicas, context = _v1_mesh(config.get("dist_config") or {}, gpus if distributed else 1, distributed)
    micro, whole = config.get("micro_batch_size", 1), config.get("global_batch_size")
    if whole is not None and whole % (replicas * micro):
        raise Refused(f"global_batch_size {whole} does not divide by {replicas} x {micro}")
    if context > 1 and attention != "flash_attention_2":  # v1/core/base_trainer.py, BaseTrainer.__init__
        raise Refused("cp_size without flash_attn: flash_attention_2")
    if strategy == "padding_free" and attention != "flash_attention_2":  # _create_batch_generator in the same file
        raise Refused("padding_free without flash_attn: flash_attention_2")
    if strategy.startswith("dynamic"):  # v1/plugins/trainer_plugins/batching.py: as many as fit into m x cutoff_len
        raise Unfixed(f"batching_strategy {strategy}: a micro-batch is a budget of tokens")
    steps = 1 if whole is None else whole // replicas // micro
    return Batch(samples=micro * steps * replicas, micro=micro, accumulation=steps, replicas=replicas, unit="rows")


def _v1_mesh(settings, processes, distributed):
    """(data-parallel replicas, context-parallel size): v1/accelerator/interface.py, DistributedStrategy."""
    context = settings.get("cp_size", 1)
    if not distributed:
        return 1, context
    replicas = settings.get("dp_size")
    if replicas is None:
        replicas = processes // context
    # dp_size is checked in __post_init__, a derived one by init_device_mesh
    if replicas * context != processes:
        raise Refused(f"dp_size x cp_size = {replicas} x {context} is not {processes}")
    copies, shards = settings.get("mp_replicate_size", 1), settings.get("mp_shard_size")
    if copies * (processes // copies if shards is None else shards) != processes:
        raise Refused(f"mp_replicate_size {copies} and mp_shard_size {shards} do not give {processes}")
    return replicas, context
