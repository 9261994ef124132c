"""What axolotl 0.19.0 refuses at every number of processes (utils/schemas/validation.py, config.py, peft.py)."""

from collections.abc import Iterator
from typing import Any

from planner.recipes.axolotl.keys import ATTENTION, GONE, METHODS, OLD_ATTENTION, REMOVED, RULES
from planner.recipes.entries import KeyReader
from planner.recipes.scalars import Unresolved

Check = tuple[Any, str, str]
"""whether axolotl refuses a recipe, the key, and why"""
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
    "qat": ("adapter", "load_in_8bit", "load_in_4bit"),
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


def raw(keys: KeyReader, name: str) -> Any:
    """The value of a key, without noting that it was read. None if it is missing or unresolved."""
    entry = keys.entries.get(name)
    return None if entry is None or isinstance(entry.value, Unresolved) else entry.value


def has_section(keys: KeyReader, name: str) -> bool:
    """Whether a key has a value that is not empty, or keys below it."""
    return bool(raw(keys, name)) or any(key.startswith(f"{name}.") for key in keys.entries)


def fsdp_version(keys: KeyReader) -> int:
    """2 with FSDP2, 1 with the older FSDP, 0 without either."""
    names = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")
    said = next((value for name in names if (value := raw(keys, name))), 1)
    return 0 if not has_section(keys, "fsdp_config") else 2 if str(said) == "2" else 1


def attention_of(keys: KeyReader) -> str:
    """The attention that the recipe names, under its newer or its older key. Empty if it names none."""
    if name := raw(keys, "attn_implementation"):
        return str(name)
    if raw(keys, "gemma4_hybrid_attn_impl"):
        return "flash_attention_2"
    return next((new for old, new in OLD_ATTENTION.items() if raw(keys, old)), "")


def base_of(attention: str) -> str:
    """An attention without its revision and kernel: `flash_attention_2@v2:x/y` -> `flash_attention_2`."""
    return attention.partition(":")[0].partition("@")[0].strip()


def datasets_of(keys: KeyReader, *names: str) -> list[dict[str, Any]]:
    """The mappings in lists of data sets."""
    lists = [value for name in names if isinstance(value := raw(keys, name), list)]
    return [each for found in lists for each in found if isinstance(each, dict)]


_TEXTS = """base_model rl adapter optimizer lr_scheduler attn_implementation eval_strategy evaluation_strategy
    save_strategy chat_template output_dir base_model_config"""
_LISTS = "datasets test_datasets plugins unfrozen_parameters dpo_loss_type dpo_loss_weights lr_groups"
_MAPPINGS = """trl fsdp_config accelerator_config gradient_checkpointing_kwargs special_tokens lora_rank_pattern
    lora_alpha_pattern qat"""
_NUMBERS = ("save_steps", "max_steps")


def refuse_types(keys: KeyReader) -> None:
    """Note values of another type than pydantic takes as mistakes.

    Raises:
        RecipeError: there are mistakes.
    """
    texts, lists, mappings = _TEXTS.split(), _LISTS.split(), _MAPPINGS.split()
    for row in RULES:
        name = row.into or row.name
        value = raw(keys, name)
        is_number = row.value in {"whole", "number", "norm"} or row.name in _NUMBERS
        is_single = is_number or row.value == "truth" or row.name in {*texts, *lists}
        wanted = ""
        if is_single and "." not in row.name and has_keys(keys, row.name):
            keys.wrong(f"{row.name}: found keys below it, which axolotl refuses. Write a single value")
        elif is_number and (isinstance(value, bool) or not isinstance(value, int | float)):
            wanted = "a number"
        elif row.name in texts and (not isinstance(value, str) or not value):
            wanted = "a text"
        elif row.name in lists and not isinstance(value, list):
            wanted = "a list"
        elif (row.name in mappings and value != {}) or (row.name == "deepspeed" and not isinstance(value, str | dict)):
            wanted = "keys and values"
        if wanted and value is not None:
            keys.refuse(name, f"axolotl refuses it: write {wanted}")
    keys.raise_mistakes()


def refuse(keys: KeyReader) -> None:
    """Note what axolotl refuses as a mistake."""
    for name in ("base_model", "learning_rate"):
        if not keys.has(_entry(name)):
            keys.wrong(f"{name}: found nothing, with which axolotl does not train. Write it in the recipe")
    _refuse_pairs(keys)
    for name in (*GONE, *REMOVED):
        if has_section(keys, name) or (name in REMOVED and keys.has(name)):
            keys.wrong(f"{name}: axolotl refuses it, because it was removed. Remove it")
    for checks in (_sizes, _method, _groups, _data, _adapters, _optimizer, _cadences):
        for is_wrong, name, why in checks(keys):
            if is_wrong:
                keys.wrong(f"{name}: axolotl refuses the recipe, because {why}. Change that")


def _refuse_pairs(keys: KeyReader) -> None:
    for name, others in _EXCLUDES.items():
        for other in others:
            if has_section(keys, _entry(name)) and has_section(keys, _entry(other)):
                keys.wrong(f"{other}: axolotl refuses it beside {name}. Remove one of them")
    for name, other in _NEEDS.items():
        if has_section(keys, name) and not has_section(keys, other):
            keys.wrong(f"{name}: axolotl refuses it without {other}. Write that, or remove {name}")


def _entry(name: str) -> str:
    """The name under which `KeyReader` has a key."""
    row = RULES.exact(name)
    return row.into if row and row.into else name


def _sizes(keys: KeyReader) -> Iterator[Check]:
    micro, steps = raw(keys, "per_device_train_batch_size"), raw(keys, "gradient_accumulation_steps")
    tp, cp = raw(keys, "tensor_parallel_size") or 1, raw(keys, "context_parallel_size")
    cp = cp or raw(keys, "sequence_parallel_degree") or 1
    shard, replicate = raw(keys, "dp_shard_size") or 1, raw(keys, "dp_replicate_size") or 1
    splits, fsdp = raw(keys, "accelerator_config.split_batches"), fsdp_version(keys) or raw(keys, "fsdp")
    flash = base_of(attention_of(keys)) == "flash_attention_2" or raw(keys, "use_glm_dsa_kernels")
    yield raw(keys, "batch_size") and not micro and not steps, "batch_size", "it needs micro_batch_size, too"
    yield splits and (tp, cp) != (1, 1), "accelerator_config.split_batches", "GPUs that share rows do not split them"
    yield cp > 1 and not flash, "context_parallel_size", "it needs attn_implementation flash_attention_2"
    packed = raw(keys, "packing") and (micro or 1) != 1 and not raw(keys, "use_glm_dsa_kernels")
    yield cp > 1 and packed, "context_parallel_size", "with sample_packing micro_batch_size must be 1"
    yield shard != 1 and not fsdp, "dp_shard_size", "there is no fsdp_config"
    alone = replicate != 1 and shard == 1 and (tp, cp) != (1, 1)
    yield alone, "dp_replicate_size", "tensor and context parallelism need dp_shard_size above 1 beside it"


def _method(keys: KeyReader) -> Iterator[Check]:
    rl, micro = raw(keys, "rl"), raw(keys, "per_device_train_batch_size")
    losses, weights = raw(keys, "dpo_loss_type"), raw(keys, "dpo_loss_weights")
    uneven = losses is not None and weights is not None and len(losses) != len(weights)
    yield rl is not None and rl not in METHODS, "rl", f"it has {', '.join(METHODS)}"
    if rl == "kto":
        yield raw(keys, "eval_sample_packing"), "eval_sample_packing", "rl kto does not pack"
        yield raw(keys, "remove_unused_columns") is not False, "remove_unused_columns", "rl kto needs the value false"
        yield (micro or 1) == 1, "micro_batch_size", "the KL term of rl kto needs a micro-batch above 1"
    yield rl != "dpo" and (losses is not None or weights is not None), "dpo_loss_type", "it is for rl dpo alone"
    yield uneven or (losses is None and weights is not None), "dpo_loss_weights", "it needs one for each dpo_loss_type"
    liger = raw(keys, "dpo_use_liger_kernel") and (rl == "ipo" or (losses or [])[:1] == ["ipo"])
    yield liger, "dpo_use_liger_kernel", "Liger has no ipo"
    yield rl == "simpo" and raw(keys, "warmup_ratio"), "warmup_ratio", "rl simpo takes warmup_steps alone"
    quantized = raw(keys, "load_in_8bit") or raw(keys, "load_in_4bit")
    on_fsdp2 = rl in ("dpo", "kto", "orpo", "ipo") and fsdp_version(keys) == 2 and quantized
    yield on_fsdp2, "fsdp_version", f"FSDP2 takes no quantized weights with rl {rl}"


def _groups(keys: KeyReader) -> Iterator[Check]:
    n, made = raw(keys, "num_generations"), raw(keys, "generation_batch_size")
    if raw(keys, "rl") == "grpo" and isinstance(n, int) and n > 0:
        how = "trl.generation_batch_size" if made else "micro_batch_size x gradient_accumulation_steps"
        steps = raw(keys, "gradient_accumulation_steps") or 1
        made = made or (raw(keys, "per_device_train_batch_size") or 1) * steps
        yield made % n, "trl.num_generations", f"{made} completions ({how}) are no whole groups of {n}"


def _data(keys: KeyReader) -> Iterator[Check]:
    datasets, tokens = raw(keys, "datasets"), raw(keys, "tokens")
    yield datasets is None and raw(keys, "pretraining_dataset") is None, "datasets", "it has no data to train on"
    old = any(str(each.get("type")).startswith("sharegpt") for each in datasets_of(keys, "datasets"))
    yield old, "datasets", "type sharegpt was replaced by chat_template"
    several = raw(keys, "streaming") and raw(keys, "packing") and len(datasets or []) > 1
    yield several, "streaming", "it packs one streamed data set alone"
    pushes = raw(keys, "push_dataset_to_hub") and raw(keys, "hf_use_auth_token") is not True
    yield pushes, "push_dataset_to_hub", "it needs hf_use_auth_token true"
    table = raw(keys, "packing") and raw(keys, "eval_table_size") and raw(keys, "eval_sample_packing") is not False
    yield table, "eval_table_size", "it needs eval_sample_packing false"
    yield (tokens is not None and not isinstance(tokens, list)) or has_keys(keys, "tokens"), "tokens", "it is no list"
    bare = raw(keys, "chat_template") == "jinja" and not raw(keys, "chat_template_jinja")
    yield bare, "chat_template", "jinja needs chat_template_jinja"
    for name in ("num_train_epochs", "output_dir"):
        yield name in keys.entries and keys.entries[name].value is None, keys.shown(name), "it is null"
    attention = raw(keys, "attn_implementation")
    known = not attention or "/" in attention or attention in ATTENTION
    yield not known, "attn_implementation", f"it has {', '.join(ATTENTION)} and paths of kernels"


def has_keys(keys: KeyReader, name: str) -> bool:
    """Whether the recipe has keys below a key."""
    return any(key.startswith(f"{name}.") for key in keys.entries)


def _adapters(keys: KeyReader) -> Iterator[Check]:
    adapter, in_8bit = raw(keys, "adapter"), raw(keys, "load_in_8bit")
    other = adapter and adapter not in ("lora", "qlora", "llama-adapter") and not raw(keys, "plugins")
    yield other, "adapter", "it has lora, qlora and llama-adapter"
    yield adapter == "qlora" and not raw(keys, "load_in_4bit"), "adapter", "qlora needs load_in_4bit true"
    yield adapter == "qlora" and (in_8bit or raw(keys, "gptq")), "adapter", "qlora has 4 bits alone"
    kernels = any(raw(keys, name) for name in _KERNELS)
    yield kernels and adapter == "lora" and in_8bit, "load_in_8bit", "lora_*_kernel takes no 8 bits"
    some = raw(keys, "unfrozen_parameters")
    yield adapter and raw(keys, "peft_layers_to_transform") and some, "unfrozen_parameters", "there are adapters, too"
    reentrant = raw(keys, "gradient_checkpointing_kwargs.use_reentrant") is True
    yield some and reentrant, "gradient_checkpointing_kwargs.use_reentrant", "unfrozen_parameters needs false"
    yield raw(keys, "save_safetensors") is False, "save_safetensors", "false was removed"


def _optimizer(keys: KeyReader) -> Iterator[Check]:
    name, version = str(raw(keys, "optim")), fsdp_version(keys)
    offloads, efficient = (
        raw(keys, f"fsdp_config.{each}") or raw(keys, f"fsdp_config.fsdp_{each}")
        for each in ("offload_params", "cpu_ram_efficient_loading")
    )
    yield version == 2 and name in {"adamw_8bit", "adamw_bnb_8bit"}, "optimizer", f"FSDP2 takes no {name}"
    yield version == 1 and "8bit" in name and offloads, "optimizer", f"FSDP that offloads takes no {name}"
    both = version == 2 and efficient and raw(keys, "load_in_4bit")
    yield both, "fsdp_config.cpu_ram_efficient_loading", "FSDP2 loads 4-bit weights without it"
    new = name.startswith("flash_") or name in {"muon", "polora", "q_galore_adamw8bit"}
    shards = version == 1 or has_section(keys, "deepspeed")
    yield new and shards, "optimizer", f"{name} takes neither DeepSpeed nor the older FSDP"
    model, fsdp = str(raw(keys, "model_name_or_path")).lower(), raw(keys, "fsdp")
    yield "falcon" in model and fsdp, "fsdp", "it takes no falcon models"
    yield "mpt" in model and raw(keys, "gradient_checkpointing"), "gradient_checkpointing", "it takes no mpt models"


def _cadences(keys: KeyReader) -> Iterator[Check]:
    strategy, every = raw(keys, "eval_strategy") or raw(keys, "evaluation_strategy"), raw(keys, "eval_steps")
    epochs, save, saves = raw(keys, "evals_per_epoch"), raw(keys, "save_strategy"), raw(keys, "save_steps")
    warmup, by_steps = raw(keys, "warmup_steps"), strategy in (None, "steps")
    yield isinstance(warmup, float) and not warmup.is_integer(), "warmup_steps", "it must be a whole number"
    yield save and saves and save != "steps", "save_steps", f"save_strategy is {save}"
    best = save == "best" and not raw(keys, "metric_for_best_model")
    yield best, "save_strategy", "best needs metric_for_best_model"
    yield every and not by_steps, "eval_steps", f"eval_strategy is {strategy}"
    yield epochs and not by_steps, "evals_per_epoch", f"eval_strategy is {strategy}"
    none = raw(keys, "val_set_size") == 0 and not raw(keys, "test_datasets") and strategy != "no"
    yield none and (every or strategy), "val_set_size", "0 leaves no rows to evaluate"
    yield raw(keys, "do_bench_eval") and not (epochs or every), "do_bench_eval", "it needs eval_steps"
    uneven = not every or not saves or saves % every
    stops = raw(keys, "early_stopping_patience") and uneven
    yield stops, "early_stopping_patience", "it needs eval_steps, and save_steps as a multiple of it"
