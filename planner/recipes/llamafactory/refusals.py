"""What LLaMA-Factory 0.9.5 refuses before its first step, whatever the number of GPUs (hparams/*.py).

planner refuses it, too: a batch that never trains is no answer.
"""

from collections.abc import Iterator

from planner.recipes.engine import Case, refuse_cases
from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.llamafactory.keys import RULES
from planner.recipes.scalars import TRUE_TEXTS
from planner.recipes.trainer.keys import TRAINING_ARGUMENTS

_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")
# Keys of LoRA alone, and of sft alone.
_OF_LORA = ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init", "adapter_name_or_path")
# Those of LoRA that are refused with any value but null.
_EVEN_EMPTY = ("loraplus_lr_ratio", "adapter_name_or_path")
_OF_SFT = ("neat_packing", "train_on_prompt", "mask_history", "predict_with_generate")
_NO_ZERO3 = ("pure_bf16", "use_unsloth", "use_kt", "pissa_init", "predict_with_generate")
_EVALUATING = ("do_eval", "do_predict", "predict_with_generate")
_STRATEGIES = ("no", "steps", "epoch")
# The least part of the rows that LLaMA-Factory holds out.
_LEAST_PART = 1e-6


def refuse_values(keys: KeyReader) -> None:
    """Notes values that LLaMA-Factory does not take, by the recipe's own names.

    It does not convert the values of a file: a default is not replaced by null, and the text "false" is true.
    """
    for row in RULES:
        entry = keys.entries.get(row.name)
        if entry is None:
            continue
        if entry.value is None and row.default is not None and row.name not in TRAINING_ARGUMENTS.names:
            keys.refuse(row.name, "LLaMA-Factory does not train with null: remove it, or write a value")
        is_text = isinstance(entry.value, str) and entry.where != COMMAND_LINE
        if row.value == "truth" and is_text and entry.value.lower() not in TRUE_TEXTS:
            keys.refuse(row.name, "Write true or false, without quotes")
    for name in ("eval_strategy", "save_strategy", "logging_strategy"):
        more = ("best",) if name == "save_strategy" else ()
        if name in keys.entries and keys.entries[name].value not in (*_STRATEGIES, *more):
            keys.refuse(name, f"Write {', '.join(_STRATEGIES[1:])}, or no in quotes (YAML reads it as false)")


def refuse_together(keys: KeyReader) -> None:
    """Notes what is missing, and keys that LLaMA-Factory refuses beside others."""
    if str(keys.peek("do_train")).lower() not in TRUE_TEXTS:
        keys.refuse("do_train", "Without it LLaMA-Factory trains nothing: write true")
    for name in ("model_name_or_path", "dataset"):
        if not keys.has(name):
            keys.wrong(f"{name}: found nothing. Write {keys.fix.format(name)} behind the recipe")
    refuse_cases(keys, "LLaMA-Factory", (*_of_data(keys), *_of_tuning(keys), *_of_devices(keys)))


def _of_data(keys: KeyReader) -> Iterator[Case]:
    """Keys of the data: hparams/data_args.py, and get_train_args in parser.py."""
    stage, size = str(keys.peek("stage", "sft")), keys.peek("val_size", 0)
    held, tested = isinstance(size, int | float) and size > _LEAST_PART, keys.has("eval_dataset")
    streams, masks = keys.peek("streaming"), keys.peek("mask_history")
    strategy = keys.peek("eval_strategy", keys.peek("evaluation_strategy", "no"))
    evaluating = [name for name in _EVALUATING if keys.peek(name)]
    evaluating += ["eval_strategy"] if strategy in _STRATEGIES[1:] else []
    for name in evaluating[:1]:
        yield not held and not tested, name, "without rows to evaluate: write val_size or eval_dataset"
    yield isinstance(size, str), "val_size", "as a text: write a number"
    yield held and tested, "val_size", "beside eval_dataset: remove one"
    yield streams and keys.peek("max_steps", -1) == -1, "streaming", "without max_steps: write both"
    yield streams and keys.has("max_samples"), "max_samples", "beside streaming: remove one"
    yield streams and held and size < 1, "val_size", "as a part beside streaming: write a number of rows"
    yield masks and keys.peek("train_on_prompt"), "mask_history", "beside train_on_prompt: remove one"
    mixes = keys.has("interleave_probs") and keys.peek("mix_strategy", "concat") == "concat"
    yield mixes, "interleave_probs", "with mix_strategy concat: write interleave_under or interleave_over"
    counts = {name: _count(keys.peek(name)) for name in ("dataset", "eval_dataset") if keys.has(name)}
    each = _count(keys.peek("interleave_probs")) if keys.has("interleave_probs") else None
    for name, count in counts.items():
        uneven = each is not None and each != count
        yield uneven, "interleave_probs", f"with {count} names in {name}: write a number for each"
    for name in _OF_SFT if stage != "sft" else ():
        yield keys.peek(name), name, f"in stage {stage}: remove it"


def _count(said: object) -> int:
    """How many values a text with commas, or a list, has (split_arg)."""
    return len(said if isinstance(said, list) else str(said).split(","))


def _of_tuning(keys: KeyReader) -> Iterator[Case]:
    """Keys of methods and adapters: hparams/finetuning_args.py, and _verify_model_args in parser.py."""
    names = ("stage", "finetuning_type", "pref_loss")
    stage, tuning, loss = (str(keys.peek(name, keys.rules[name].default)) for name in names)
    for name in _OF_LORA if tuning != "lora" else ():
        is_there = keys.has(name) if name in _EVEN_EMPTY else keys.peek(name)
        yield is_there, name, f"with finetuning_type {tuning}: write lora, or remove it"
    replaced = [name for name in _OPTIMIZERS if keys.peek(name)]
    for name in replaced[:1]:
        yield tuning == "lora", name, "with finetuning_type lora: write full or freeze, or remove it"
    for name in replaced[1:2]:
        yield True, name, f"beside {replaced[0]}: remove one"
    yield stage == "ppo" and not keys.has("reward_model"), "stage", "without reward_model: write one"
    smooths = stage == "dpo" and loss != "sigmoid" and keys.peek("label_smoothing")
    yield smooths, "label_smoothing", f"with pref_loss {loss}: remove it"
    expands = keys.peek("use_llama_pro") and tuning == "full"
    yield expands, "use_llama_pro", "with finetuning_type full: write freeze or lora"
    refers = stage in {"ppo", "kto"} or (stage == "dpo" and loss not in {"orpo", "simpo"})
    yield keys.peek("pissa_init") and tuning == "lora" and refers, "pissa_init", f"in stage {stage}: remove it"
    if keys.has("quantization_bit"):
        why = f"with finetuning_type {tuning}: write lora or oft, or remove it"
        yield tuning not in {"lora", "oft"}, "quantization_bit", why
        for name in ("fp8", "pissa_init", "resize_vocab"):
            yield keys.peek(name), name, "beside quantization_bit: remove one"


def _of_devices(keys: KeyReader) -> Iterator[Case]:
    """Keys beside DeepSpeed, or on GPUs: get_train_args in hparams/parser.py."""
    for name in ("use_galore", "use_apollo") if keys.is_set("deepspeed") else ():
        yield keys.peek(name), name, "beside deepspeed: remove one"
    for name in _NO_ZERO3 if keys.peek("deepspeed.zero_optimization.stage") == 3 else ():
        yield keys.peek(name), name, "with DeepSpeed's ZeRO-3: remove it, or write a file of ZeRO-2"
    yield keys.peek("infer_backend", "huggingface") != "huggingface", "infer_backend", "in training: remove it"
    yield keys.peek("quantization_device_map") == "auto", "quantization_device_map", "in training: remove it"
    chooses = keys.peek("load_best_model_at_end") and str(keys.peek("stage", "sft")) in {"rm", "ppo"}
    yield chooses, "load_best_model_at_end", "in stages rm and ppo: remove it"
