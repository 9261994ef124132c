"""What axolotl 0.19.0 refuses at every number of processes (utils/schemas/validation.py, config.py, peft.py)."""

from collections.abc import Iterator
from typing import Any

from planner.recipes.axolotl.keys import ATTENTION, METHODS, OLD_ATTENTION, RULES, TITLE
from planner.recipes.engine import Case, below, refuse_beside, refuse_cases, refuse_types, refuse_without
from planner.recipes.entries import KeyReader

_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
# Each key with those that axolotl refuses beside it. A key counts if its value is neither null, false, 0 nor empty.
_EXCLUDES = {
    "gradient_accumulation_steps": ("batch_size",),
    "sample_packing": ("rl",),
    "warmup_ratio": ("warmup_steps",),
    "save_steps": ("saves_per_epoch",),
    "eval_steps": ("evals_per_epoch",),
    "val_set_size": ("test_datasets", "streaming", "pretraining_dataset"),
    "dataset_exact_deduplication": ("streaming", "pretraining_dataset", "skip_prepare_dataset"),
    "include_tokens_per_second": ("pretraining_dataset",),
    "deepspeed": ("fsdp",),
    "qat": ("peft", "load_in_8bit", "load_in_4bit"),
    "relora": ("fsdp", "fsdp_config", "deepspeed"),
    "lora_target_parameters": ("lora_dropout",),
    "lr_groups": ("loraplus_lr_ratio",),
    "max_memory": ("gpu_memory_limit",),
    "attn_implementation": tuple(OLD_ATTENTION),
    "trust_remote_code": _KERNELS,
    "cut_cross_entropy": ("chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy"),
    "chunked_cross_entropy": ("liger_cross_entropy", "liger_fused_linear_cross_entropy"),
    "liger_cross_entropy": ("liger_fused_linear_cross_entropy",),
}
# Each key with one that axolotl needs beside it.
_NEEDS = {
    "streaming": "max_steps",
    "pretraining_dataset": "max_steps",
    "peft_layers_pattern": "peft_layers_to_transform",
    "activation_offloading": "gradient_checkpointing",
    "selective_checkpointing": "gradient_checkpointing",
    "deepcompile": "deepspeed",
    "relora": "jagged_restart_steps",
    "jagged_restart_steps": "adapter",
    "load_in_4bit": "adapter",
    "load_in_8bit": "adapter",
}


_NEVER_NULL = ("num_train_epochs", "output_dir", "max_length", "use_ray", "ray_num_workers", "resources_per_worker",
               "quantize_moe_experts")  # fmt: skip


def fsdp_version(keys: KeyReader) -> int:
    """2 with FSDP2, 1 with the older FSDP, 0 without either."""
    names = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")
    said = next((value for name in names if (value := keys.peek(name))), 1)
    return 0 if not keys.is_set("fsdp_config") else 2 if str(said) == "2" else 1


def attention_of(keys: KeyReader) -> str:
    """The attention that the recipe names, under its newer or its older key. Empty if it names none."""
    if name := keys.peek("attn_implementation"):
        return str(name)
    if keys.peek("gemma4_hybrid_attn_impl"):
        return "flash_attention_2"
    return next((new for old, new in OLD_ATTENTION.items() if keys.peek(old)), "")


def base_of(attention: str) -> str:
    """An attention without its revision and kernel: `flash_attention_2@v2:x/y` -> `flash_attention_2`."""
    return attention.partition(":")[0].partition("@")[0].strip()


def datasets_of(keys: KeyReader, *names: str) -> list[dict[str, Any]]:
    """The mappings in lists of data sets."""
    lists = [value for name in names if isinstance(value := keys.peek(name), list)]
    return [each for found in lists for each in found if isinstance(each, dict)]


def refuse(keys: KeyReader) -> None:
    """Note what axolotl refuses as a mistake.

    Raises:
        RecipeError: a value is of another type than pydantic takes.
    """
    if not isinstance(keys.peek("deepspeed"), str | dict | None):
        keys.refuse("deepspeed", "axolotl refuses it: write the name of a file, or keys and values")
    refuse_types(keys, TITLE)
    keys.raise_mistakes()
    for name in ("base_model", "learning_rate"):
        if not keys.has(below(RULES, name)):
            keys.wrong(f"{name}: found nothing, with which axolotl does not train. Write it in the recipe")
    refuse_beside(keys, TITLE, _EXCLUDES)
    refuse_without(keys, TITLE, _NEEDS)
    for checks in (_sizes, _method, _groups, _data, _adapters, _optimizer, _cadences):
        refuse_cases(keys, TITLE, ((its, name, f"because {why}") for its, name, why in checks(keys)))


def _sizes(keys: KeyReader) -> Iterator[Case]:
    micro, steps = keys.peek("per_device_train_batch_size"), keys.peek("gradient_accumulation_steps")
    tp, cp = keys.peek("tensor_parallel_size") or 1, keys.peek("context_parallel_size")
    cp = cp or keys.peek("sequence_parallel_degree") or 1
    shard, replicate = keys.peek("dp_shard_size") or 1, keys.peek("dp_replicate_size") or 1
    splits, fsdp = keys.peek("accelerator_config.split_batches"), fsdp_version(keys) or keys.peek("fsdp")
    flash = base_of(attention_of(keys)) == "flash_attention_2"
    own = keys.peek("use_glm_dsa_kernels") and "kernels.KernelsPlugin" in str(keys.peek("plugins"))
    yield keys.peek("batch_size") and not micro and not steps, "batch_size", "it needs micro_batch_size, too"
    yield splits and (tp, cp) != (1, 1), "accelerator_config.split_batches", "GPUs that share rows do not split them"
    yield cp > 1 and not flash and not own, "context_parallel_size", "it needs attn_implementation flash_attention_2"
    packed = keys.peek("packing") and (micro or 1) != 1 and not own
    yield cp > 1 and packed, "context_parallel_size", "with sample_packing micro_batch_size must be 1"
    yield shard != 1 and not fsdp, "dp_shard_size", "there is no fsdp_config"
    alone = replicate != 1 and shard == 1 and (tp, cp) != (1, 1)
    yield alone, "dp_replicate_size", "tensor and context parallelism need dp_shard_size above 1 beside it"


def _method(keys: KeyReader) -> Iterator[Case]:
    rl, micro = keys.peek("rl"), keys.peek("per_device_train_batch_size")
    losses, weights = keys.peek("dpo_loss_type"), keys.peek("dpo_loss_weights")
    uneven = losses is not None and weights is not None and len(losses) != len(weights)
    yield rl is not None and rl not in METHODS, "rl", f"only {', '.join(METHODS)} are known"
    if rl == "kto":
        yield keys.peek("eval_sample_packing"), "eval_sample_packing", "rl kto does not pack"
        yield keys.peek("remove_unused_columns") is not False, "remove_unused_columns", "rl kto needs the value false"
        yield (micro or 1) == 1, "micro_batch_size", "the KL term of rl kto needs a micro-batch above 1"
    yield rl != "dpo" and (losses is not None or weights is not None), "dpo_loss_type", "it is for rl dpo alone"
    yield uneven or (losses is None and weights is not None), "dpo_loss_weights", "it needs one for each dpo_loss_type"
    liger = keys.peek("dpo_use_liger_kernel") and (rl == "ipo" or (losses or [])[:1] == ["ipo"])
    yield liger, "dpo_use_liger_kernel", "Liger has no ipo"
    yield rl == "simpo" and keys.peek("warmup_ratio"), "warmup_ratio", "rl simpo takes warmup_steps alone"
    quantized = keys.peek("load_in_8bit") or keys.peek("load_in_4bit")
    on_fsdp2 = (
        rl in ("dpo", "kto", "orpo", "ipo") and 2 in (fsdp_version(keys), keys.peek("fsdp_version")) and quantized
    )
    yield on_fsdp2, "fsdp_version", f"FSDP2 takes no quantized weights with rl {rl}"


def _groups(keys: KeyReader) -> Iterator[Case]:
    n, made = keys.peek("num_generations"), keys.peek("generation_batch_size")
    if keys.peek("rl") == "grpo" and isinstance(n, int) and n > 0:
        how = "trl.generation_batch_size" if made else "micro_batch_size x gradient_accumulation_steps"
        steps = keys.peek("gradient_accumulation_steps") or 1
        made = made or (keys.peek("per_device_train_batch_size") or 1) * steps
        yield made % n, "trl.num_generations", f"{made} completions ({how}) are no whole groups of {n}"


def _data(keys: KeyReader) -> Iterator[Case]:
    datasets = keys.peek("datasets")
    streamed = keys.peek("pretraining_dataset")
    yield datasets is None and streamed is None, "datasets", "there is no data to train on"
    for name, its in (("datasets", datasets), ("pretraining_dataset", streamed)):
        sections = its is None or (isinstance(its, list) and all(isinstance(each, dict) for each in its))
        yield not sections, name, "it is no list of sections with a path"
    old = any(str(each.get("type")).startswith("sharegpt") for each in datasets_of(keys, "datasets"))
    yield old, "datasets", "type sharegpt was replaced by chat_template"
    several = keys.peek("streaming") and keys.peek("packing") and len(datasets or []) > 1
    yield several, "streaming", "it packs one streamed data set alone"
    pushes = keys.peek("push_dataset_to_hub") and keys.peek("hf_use_auth_token") is not True
    yield pushes, "push_dataset_to_hub", "it needs hf_use_auth_token true"
    table = keys.peek("packing") and keys.peek("eval_table_size") and keys.peek("eval_sample_packing") is not False
    yield table, "eval_table_size", "it needs eval_sample_packing false"
    bare = keys.peek("chat_template") == "jinja" and not keys.peek("chat_template_jinja")
    yield bare, "chat_template", "jinja needs chat_template_jinja"
    for name in _NEVER_NULL:
        yield name in keys.entries and keys.entries[name].value is None, keys.shown(name), "it is null"
    attention = keys.peek("attn_implementation")
    known = not attention or "/" in attention or attention in ATTENTION
    yield not known, "attn_implementation", f"only {', '.join(ATTENTION)} and paths of kernels are known"


def _adapters(keys: KeyReader) -> Iterator[Case]:
    adapter, in_8bit = keys.peek("adapter"), keys.peek("load_in_8bit")
    other = adapter and adapter not in ("lora", "qlora", "llama-adapter") and not keys.peek("plugins")
    yield other, "adapter", "only lora, qlora and llama-adapter are known"
    yield adapter == "qlora" and not keys.peek("load_in_4bit"), "adapter", "qlora needs load_in_4bit true"
    yield adapter == "qlora" and (in_8bit or keys.peek("gptq")), "adapter", "qlora has 4 bits alone"
    kernels = any(keys.peek(name) for name in _KERNELS)
    yield kernels and adapter == "lora" and in_8bit, "load_in_8bit", "lora_*_kernel takes no 8 bits"
    some = keys.peek("unfrozen_parameters")
    yield adapter and keys.peek("peft_layers_to_transform") and some, "unfrozen_parameters", "there are adapters, too"
    reentrant = keys.peek("gradient_checkpointing_kwargs.use_reentrant") is True
    yield some and reentrant, "gradient_checkpointing_kwargs.use_reentrant", "unfrozen_parameters needs false"
    yield keys.peek("save_safetensors") is False, "save_safetensors", "false was removed"


def _optimizer(keys: KeyReader) -> Iterator[Case]:
    name, version = str(keys.peek("optim")), fsdp_version(keys)
    offloads, efficient = (
        keys.peek(f"fsdp_config.{each}") or keys.peek(f"fsdp_config.fsdp_{each}")
        for each in ("offload_params", "cpu_ram_efficient_loading")
    )
    yield version == 2 and name in {"adamw_8bit", "adamw_bnb_8bit"}, "optimizer", f"FSDP2 takes no {name}"
    yield version == 1 and "8bit" in name and offloads, "optimizer", f"FSDP that offloads takes no {name}"
    both = version == 2 and efficient and keys.peek("load_in_4bit")
    yield both, "fsdp_config.cpu_ram_efficient_loading", "FSDP2 loads 4-bit weights without it"
    new = name.startswith("flash_") or name in {"muon", "polora", "q_galore_adamw8bit"}
    shards = version == 1 or keys.is_set("deepspeed")
    yield new and shards, "optimizer", f"{name} takes neither DeepSpeed nor the older FSDP"
    model, fsdp = str(keys.peek("model_name_or_path")).lower(), keys.peek("fsdp")
    yield "falcon" in model and fsdp, "fsdp", "it takes no falcon models"
    yield "mpt" in model and keys.peek("gradient_checkpointing"), "gradient_checkpointing", "it takes no mpt models"


def _cadences(keys: KeyReader) -> Iterator[Case]:
    strategy, every = keys.peek("eval_strategy") or keys.peek("evaluation_strategy"), keys.peek("eval_steps")
    epochs, save, saves = keys.peek("evals_per_epoch"), keys.peek("save_strategy"), keys.peek("save_steps")
    warmup, by_steps = keys.peek("warmup_steps"), strategy in (None, "steps")
    yield isinstance(warmup, float) and not warmup.is_integer(), "warmup_steps", "it must be a whole number"
    yield save and saves and save != "steps", "save_steps", f"save_strategy is {save}"
    best = save == "best" and not keys.peek("metric_for_best_model")
    yield best, "save_strategy", "best needs metric_for_best_model"
    yield every and not by_steps, "eval_steps", f"eval_strategy is {strategy}"
    yield epochs and not by_steps, "evals_per_epoch", f"eval_strategy is {strategy}"
    none = keys.peek("val_set_size") == 0 and not keys.peek("test_datasets") and strategy != "no"
    yield none and (every or strategy), "val_set_size", "0 leaves no rows to evaluate"
    yield keys.peek("do_bench_eval") and not (epochs or every), "do_bench_eval", "it needs eval_steps"
    uneven = not every or not saves or saves % every
    stops = keys.peek("early_stopping_patience") and uneven
    yield stops, "early_stopping_patience", "it needs eval_steps, and save_steps as a multiple of it"
