"""What axolotl 0.19.0 refuses at every number of processes (utils/schemas/validation.py, config.py, peft.py)."""

from collections.abc import Iterator
from typing import Any

from planner.recipes.axolotl.keys import ATTENTION, GONE, METHODS, OLD_ATTENTION, REMOVED, RULES
from planner.recipes.entries import KeyReader
from planner.recipes.scalars import Unresolved

_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


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


_TEXTS = (
    "base_model rl adapter optimizer lr_scheduler attn_implementation eval_strategy evaluation_strategy save_strategy "
    "chat_template output_dir base_model_config"
).split()
_LISTS = "datasets test_datasets plugins unfrozen_parameters dpo_loss_type dpo_loss_weights lr_groups".split()
_MAPPINGS = (
    "trl fsdp_config accelerator_config gradient_checkpointing_kwargs special_tokens lora_rank_pattern "
    "lora_alpha_pattern qat"
).split()
_NUMBERS = "save_steps max_steps".split()


def refuse_types(keys: KeyReader) -> None:
    """Note values of another type than pydantic takes as mistakes."""
    for row in RULES:
        entry = keys.entries.get(row.into or row.name)
        value = None if entry is None or isinstance(entry.value, Unresolved) else entry.value
        is_number = row.value in {"whole", "number", "norm"} or row.name in _NUMBERS
        if is_number or row.value == "truth" or row.name in {*_TEXTS, *_LISTS}:
            if "." not in row.name and has_keys(keys, row.name):
                keys.wrong(f"{row.name}: found keys below it, which axolotl refuses. Write a single value")
        if value is None:
            continue
        if is_number and (isinstance(value, bool) or not isinstance(value, int | float)):
            keys.refuse(row.into or row.name, "axolotl refuses it: write a number")
        elif row.name in _TEXTS and (not isinstance(value, str) or not value):
            keys.refuse(row.into or row.name, "axolotl refuses it: write a text")
        elif row.name in _LISTS and not isinstance(value, list):
            keys.refuse(row.name, "axolotl refuses it: write a list")
        elif row.name in _MAPPINGS and value != {}:
            keys.refuse(row.name, "axolotl refuses it: write keys and values")
        elif row.name == "deepspeed" and not isinstance(value, str | dict):
            keys.refuse(row.name, "axolotl refuses it: write the path of a file, or its keys")
    keys.raise_mistakes()


def refuse(keys: KeyReader) -> None:
    """Note what axolotl refuses as a mistake."""
    for name in ("base_model", "learning_rate"):
        if raw(keys, (RULES[name].into or name)) is None and name not in _unresolved(keys):
            keys.wrong(f"{name}: found nothing, with which axolotl does not train. Write it in the recipe")
    for checks in (_sizes, _method, _data, _adapters, _cadences, _memory):
        for is_wrong, name, why in checks(keys):
            if is_wrong:
                keys.wrong(f"{name}: axolotl refuses the recipe, because {why}. Change or remove one of these keys")


def _unresolved(keys: KeyReader) -> set[str]:
    return {keys.shown(name) for name, its in keys.entries.items() if isinstance(its.value, Unresolved)}


Check = tuple[Any, str, str]


def _sizes(keys: KeyReader) -> Iterator[Check]:
    micro, steps = raw(keys, "per_device_train_batch_size"), raw(keys, "gradient_accumulation_steps")
    whole = raw(keys, "batch_size")
    yield whole and steps, "batch_size", "it takes either that or gradient_accumulation_steps"
    yield whole and not micro and not steps, "batch_size", "it needs micro_batch_size beside it"
    for name in ("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree"):
        yield (
            raw(keys, name) and raw(keys, "accelerator_config.split_batches") and raw(keys, name) != 1,
            name,
            ("GPUs that share rows cannot also share a batch (split_batches)"),
        )
    cp = raw(keys, "context_parallel_size") or raw(keys, "sequence_parallel_degree")
    if isinstance(cp, int) and cp > 1 and not raw(keys, "use_glm_dsa_kernels"):
        yield (
            base_of(attention_of(keys)) != "flash_attention_2",
            "context_parallel_size",
            ("it needs attn_implementation flash_attention_2"),
        )
        yield (
            raw(keys, "packing") and (micro or 1) != 1,
            "context_parallel_size",
            ("with sample_packing micro_batch_size must be 1"),
        )
    shard, replicate = raw(keys, "dp_shard_size") or 1, raw(keys, "dp_replicate_size") or 1
    tp = raw(keys, "tensor_parallel_size")
    yield shard != 1 and not fsdp_version(keys) and not raw(keys, "fsdp"), "dp_shard_size", "there is no fsdp_config"
    yield (
        replicate != 1 and shard == 1 and (tp or 1, cp or 1) != (1, 1),
        "dp_replicate_size",
        ("tensor_parallel_size and context_parallel_size need dp_shard_size above 1 beside it"),
    )


def _method(keys: KeyReader) -> Iterator[Check]:
    rl, packs = raw(keys, "rl"), raw(keys, "packing")
    losses, weights = raw(keys, "dpo_loss_type"), raw(keys, "dpo_loss_weights")
    yield rl is not None and rl not in METHODS, "rl", f"it has {', '.join(METHODS)}"
    yield rl and packs, "sample_packing", f"rl {rl} does not pack"
    yield rl == "kto" and raw(keys, "eval_sample_packing"), "eval_sample_packing", "rl kto does not pack"
    yield (
        rl == "kto" and raw(keys, "remove_unused_columns") is not False,
        "remove_unused_columns",
        ("rl kto needs the value false"),
    )
    yield (
        rl == "kto" and (raw(keys, "per_device_train_batch_size") or 1) == 1,
        "micro_batch_size",
        ("rl kto needs a micro-batch above 1 for its KL term"),
    )
    yield rl != "dpo" and (losses is not None or weights is not None), "dpo_loss_type", "it is for rl dpo alone"
    yield losses is None and weights is not None, "dpo_loss_weights", "it needs dpo_loss_type"
    yield (
        isinstance(losses, list) and isinstance(weights, list) and len(losses) != len(weights),
        ("dpo_loss_weights"),
        "it needs a weight for each loss of dpo_loss_type",
    )
    yield (
        raw(keys, "dpo_use_liger_kernel") and (rl == "ipo" or (isinstance(losses, list) and losses[:1] == ["ipo"])),
        ("dpo_use_liger_kernel"),
        "Liger has no ipo",
    )
    yield rl == "simpo" and raw(keys, "warmup_ratio"), "warmup_ratio", "rl simpo takes warmup_steps alone"
    yield (
        rl == "gdpo" and raw(keys, "trl.multi_objective_aggregation") == "sum_then_normalize",
        ("trl.multi_objective_aggregation"),
        "rl gdpo normalizes first",
    )
    n, rows = raw(keys, "num_generations"), raw(keys, "generation_batch_size")
    if rl == "grpo" and isinstance(n, int) and n > 0:
        made = rows or (raw(keys, "per_device_train_batch_size") or 1) * (raw(keys, "gradient_accumulation_steps") or 1)
        yield n < 2, "trl.num_generations", "a group needs two completions"
        yield (
            isinstance(made, int) and made % n,
            "trl.num_generations",
            (
                f"{made} completions (trl.generation_batch_size, or micro_batch_size x gradient_accumulation_steps) are "
                f"no whole groups of {n}"
            ),
        )
    yield (
        rl in {"dpo", "kto", "orpo", "ipo"} and fsdp_version(keys) == 2 and _quantized(keys),
        "fsdp_version",
        (f"FSDP2 takes no quantized weights with rl {rl}"),
    )


def _quantized(keys: KeyReader) -> bool:
    return bool(raw(keys, "load_in_8bit") or raw(keys, "load_in_4bit"))


def _data(keys: KeyReader) -> Iterator[Check]:
    datasets, pretraining, streams = raw(keys, "datasets"), raw(keys, "pretraining_dataset"), raw(keys, "streaming")
    held, steps, packs = raw(keys, "val_set_size"), raw(keys, "max_steps"), raw(keys, "packing")
    yield datasets is None and pretraining is None, "datasets", "it names neither datasets nor pretraining_dataset"
    yield (
        any(str(each.get("type")).startswith("sharegpt") for each in datasets_of(keys, "datasets")),
        ("datasets"),
        "type sharegpt was replaced by chat_template",
    )
    yield held and raw(keys, "test_datasets"), "val_set_size", "it takes either that or test_datasets"
    yield (streams or pretraining) and held, "val_set_size", "streamed rows cannot be held out"
    yield (streams or pretraining) and not steps, "max_steps", "it does not know how many rows a stream has"
    yield (
        streams and packs and isinstance(datasets, list) and len(datasets) > 1,
        ("streaming"),
        "it packs one streamed data set alone",
    )
    unique = raw(keys, "dataset_exact_deduplication")
    yield (
        unique and (streams or pretraining or raw(keys, "skip_prepare_dataset")),
        ("dataset_exact_deduplication"),
        "these rows are not prepared beforehand",
    )
    yield (
        raw(keys, "push_dataset_to_hub") and raw(keys, "hf_use_auth_token") is not True,
        ("push_dataset_to_hub"),
        "it needs hf_use_auth_token true",
    )
    yield (
        packs and raw(keys, "eval_table_size") and raw(keys, "eval_sample_packing") is not False,
        ("eval_table_size"),
        "it needs eval_sample_packing false",
    )
    yield (
        (raw(keys, "tokens") is not None and not isinstance(raw(keys, "tokens"), list)) or has_keys(keys, "tokens"),
        ("tokens"),
        "it must be a list",
    )
    yield (
        raw(keys, "chat_template") == "jinja" and not raw(keys, "chat_template_jinja"),
        ("chat_template"),
        "jinja needs chat_template_jinja",
    )
    for name in ("num_train_epochs", "output_dir"):
        yield name in keys.entries and keys.entries[name].value is None, keys.shown(name), "it is null"
    yield (
        pretraining and raw(keys, "include_tokens_per_second"),
        "include_tokens_per_second",
        ("it cannot count a stream's tokens"),
    )


def has_keys(keys: KeyReader, name: str) -> bool:
    """Whether the recipe has keys below a key."""
    return any(key.startswith(f"{name}.") for key in keys.entries)


def _adapters(keys: KeyReader) -> Iterator[Check]:
    adapter, optimizer = raw(keys, "adapter"), str(raw(keys, "optim"))
    plain = not raw(keys, "plugins") and adapter not in {"lora", "qlora", "llama-adapter"}
    kernels, version = any(raw(keys, name) for name in _KERNELS), fsdp_version(keys)
    yield adapter and plain, "adapter", "it has lora, qlora and llama-adapter"
    yield not adapter and _quantized(keys), "load_in_8bit, load_in_4bit", "quantized weights need an adapter"
    yield adapter == "qlora" and not raw(keys, "load_in_4bit"), "adapter", "qlora needs load_in_4bit true"
    yield adapter == "qlora" and (raw(keys, "load_in_8bit") or raw(keys, "gptq")), "adapter", "qlora is 4-bit alone"
    yield (
        raw(keys, "lora_target_parameters") and raw(keys, "lora_dropout"),
        "lora_dropout",
        ("lora_target_parameters takes none"),
    )
    yield kernels and adapter == "lora" and raw(keys, "load_in_8bit"), "lora_*_kernel", "the kernels take no 8 bits"
    yield kernels and raw(keys, "trust_remote_code"), "lora_*_kernel", "the kernels run without trust_remote_code"
    yield raw(keys, "lr_groups") and raw(keys, "loraplus_lr_ratio"), "lr_groups", "it excludes loraplus_lr_ratio"
    yield (
        raw(keys, "peft_layers_pattern") and not raw(keys, "peft_layers_to_transform"),
        ("peft_layers_pattern"),
        "it needs peft_layers_to_transform",
    )
    yield (
        adapter and raw(keys, "peft_layers_to_transform") and raw(keys, "unfrozen_parameters"),
        ("unfrozen_parameters"),
        "it excludes peft_layers_to_transform",
    )
    yield (
        raw(keys, "unfrozen_parameters") and raw(keys, "gradient_checkpointing_kwargs.use_reentrant") is True,
        ("gradient_checkpointing_kwargs.use_reentrant"),
        "unfrozen_parameters needs false",
    )
    yield has_section(keys, "qat") and (adapter or _quantized(keys)), "qat", "it takes no adapter"
    yield (
        raw(keys, "relora")
        and (not raw(keys, "jagged_restart_steps") or not adapter or version or has_section(keys, "deepspeed")),
        "relora",
        ("it needs jagged_restart_steps and an adapter, and takes neither FSDP nor DeepSpeed"),
    )
    yield version == 2 and optimizer in {"adamw_8bit", "adamw_bnb_8bit"}, "optimizer", f"FSDP2 takes no {optimizer}"
    offloads = raw(keys, "fsdp_config.offload_params") or raw(keys, "fsdp_config.fsdp_offload_params")
    yield version == 1 and "8bit" in optimizer and offloads, "optimizer", f"FSDP offload takes no {optimizer}"
    efficient = raw(keys, "fsdp_config.cpu_ram_efficient_loading") or raw(
        keys, "fsdp_config.fsdp_cpu_ram_efficient_loading"
    )
    yield (
        version == 2 and efficient and raw(keys, "load_in_4bit"),
        "fsdp_config.cpu_ram_efficient_loading",
        ("FSDP2 loads 4-bit weights without it"),
    )
    is_new = optimizer.startswith("flash_") or optimizer in {"muon", "polora", "q_galore_adamw8bit"}
    yield (
        is_new and (version == 1 or has_section(keys, "deepspeed")),
        "optimizer",
        (f"{optimizer} takes neither DeepSpeed nor the older FSDP"),
    )


def _cadences(keys: KeyReader) -> Iterator[Check]:
    strategy, every = raw(keys, "eval_strategy") or raw(keys, "evaluation_strategy"), raw(keys, "eval_steps")
    epochs, save, saves = raw(keys, "evals_per_epoch"), raw(keys, "save_strategy"), raw(keys, "save_steps")
    warmup = raw(keys, "warmup_steps")
    yield warmup and raw(keys, "warmup_ratio"), "warmup_steps", "it takes either that or warmup_ratio"
    yield isinstance(warmup, float) and not warmup.is_integer(), "warmup_steps", "it must be a whole number"
    yield save and saves and save != "steps", "save_steps", f"save_strategy is {save}"
    yield saves and raw(keys, "saves_per_epoch"), "save_steps", "it takes either that or saves_per_epoch"
    yield (
        save == "best" and not raw(keys, "metric_for_best_model"),
        "save_strategy",
        ("best needs metric_for_best_model"),
    )
    yield strategy and every and strategy != "steps", "eval_steps", f"eval_strategy is {strategy}"
    yield epochs and every, "eval_steps", "it takes either that or evals_per_epoch"
    yield epochs and strategy and strategy != "steps", "evals_per_epoch", f"eval_strategy is {strategy}"
    none = raw(keys, "val_set_size") == 0 and not raw(keys, "test_datasets")
    yield none and (every or strategy) and strategy != "no", "val_set_size", "0 leaves no rows to evaluate"
    yield raw(keys, "do_bench_eval") and not (epochs or every), "do_bench_eval", "it needs eval_steps"
    if raw(keys, "early_stopping_patience"):
        numbers = all(isinstance(each, int | float) and each for each in (every, saves))
        yield (
            not numbers or saves % every,
            "early_stopping_patience",
            ("it needs save_steps and eval_steps, of which the second divides the first"),
        )


def _memory(keys: KeyReader) -> Iterator[Check]:
    attention, model = raw(keys, "attn_implementation"), str(raw(keys, "model_name_or_path")).lower()
    old = [name for name in OLD_ATTENTION if raw(keys, name)]
    known = not attention or "/" in str(attention) or attention in ATTENTION
    checkpoints = raw(keys, "gradient_checkpointing")
    yield not known, "attn_implementation", f"it has {', '.join(ATTENTION)} and paths of kernels"
    yield attention and old, "attn_implementation", (f"it excludes the older {', '.join(old)}")
    yield has_section(keys, "deepspeed") and raw(keys, "fsdp"), "deepspeed", "it excludes fsdp"
    yield (
        raw(keys, "activation_offloading") and not checkpoints,
        "activation_offloading",
        ("it needs gradient_checkpointing"),
    )
    yield (
        raw(keys, "selective_checkpointing") and not checkpoints,
        "selective_checkpointing",
        ("it needs gradient_checkpointing"),
    )
    yield "falcon" in model and raw(keys, "fsdp"), "fsdp", "it takes no falcon models"
    yield "mpt" in model and checkpoints, "gradient_checkpointing", "it takes no mpt models"
    yield (
        raw(keys, "max_memory") is not None and raw(keys, "gpu_memory_limit") is not None,
        ("max_memory"),
        "it excludes gpu_memory_limit",
    )
    yield raw(keys, "deepcompile") and not has_section(keys, "deepspeed"), "deepcompile", "it needs deepspeed"
    losses = ("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy")
    yield sum(bool(raw(keys, name)) for name in losses) > 1, "cut_cross_entropy", "it has one such loss at a time"
    yield raw(keys, "save_safetensors") is False, "save_safetensors", "false was removed"
    for name in REMOVED:
        yield raw(keys, name) is not None, name, "it was removed"
    for name in GONE:
        yield has_section(keys, name), name, "it was removed"
