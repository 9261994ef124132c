"""What LLaMA-Factory 0.9.5 refuses before its first step, whatever the number of GPUs (hparams/*.py).

planner refuses it, too: a batch that never trains is no answer.
"""

from typing import Any

from planner.recipes.entries import COMMAND_LINE, KeyReader
from planner.recipes.llamafactory.keys import RULES
from planner.recipes.scalars import TRUE_TEXTS, Unresolved
from planner.recipes.trainer.keys import TRAINING_ARGUMENTS

_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")
# Keys of LoRA alone, and of sft alone.
_OF_LORA = ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init", "adapter_name_or_path")
# Those of LoRA that are refused with any value but null.
_EVEN_EMPTY = ("loraplus_lr_ratio", "adapter_name_or_path")
_OF_SFT = ("neat_packing", "train_on_prompt", "mask_history", "predict_with_generate")
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
    for name in dict.fromkeys(name.partition(".")[0] for name in keys.entries if "." in name):
        outer = RULES.exact(name)
        if outer and (outer.value != "any" or outer.default is not None or outer.stands_alone or outer.is_true):
            keys.wrong(f"{name}: found a section. Write a single value")
    if "eval_strategy" in keys.entries and keys.entries["eval_strategy"].value not in _STRATEGIES:
        keys.refuse("eval_strategy", f"Write {', '.join(_STRATEGIES[1:])}, or no in quotes (YAML reads it as false)")


def refuse_together(keys: KeyReader) -> None:
    """Notes what is missing, and keys that LLaMA-Factory refuses beside others."""
    if _its(keys, "do_train") is not True:
        keys.refuse("do_train", "Without it LLaMA-Factory trains nothing: write true")
    for name in ("model_name_or_path", "dataset"):
        if not keys.has(name):
            keys.wrong(f"{name}: found nothing. Write {keys.fix.format(name)} behind the recipe")
    for name, is_refused, why in (*_of_data(keys), *_of_tuning(keys), *_of_devices(keys)):
        if is_refused:
            keys.refuse(name, f"LLaMA-Factory refuses it {why}")


def _its(keys: KeyReader, name: str, default: Any = None) -> Any:
    """The value of a key. It does not count as read, because no note tells of it."""
    entry = keys.entries.get(name)
    if entry is None or entry.value is None or isinstance(entry.value, Unresolved):
        return default
    return entry.value


_Case = tuple[str, Any, str]
"""a key, whether LLaMA-Factory refuses it here, and why"""


def _of_data(keys: KeyReader) -> tuple[_Case, ...]:
    """Keys of the data: hparams/data_args.py, and get_train_args in parser.py."""
    stage, size = str(_its(keys, "stage", "sft")), _its(keys, "val_size", 0)
    held = isinstance(size, int | float) and size > _LEAST_PART
    tested = keys.has("eval_dataset")
    streams, mix = _its(keys, "streaming"), _its(keys, "mix_strategy", "concat")
    strategy = _its(keys, "eval_strategy", _its(keys, "evaluation_strategy", "no"))
    evaluating = [name for name in _EVALUATING if _its(keys, name)]
    evaluating += ["eval_strategy"] if strategy in _STRATEGIES[1:] else []
    return (
        (
            next(iter(evaluating), ""),
            evaluating and not held and not tested,
            "without rows to evaluate: write val_size or eval_dataset",
        ),
        ("val_size", held and tested, "beside eval_dataset: remove one"),
        ("streaming", streams and _its(keys, "max_steps", -1) == -1, "without max_steps: write both"),
        ("max_samples", streams and keys.has("max_samples"), "beside streaming: remove one"),
        ("val_size", streams and held and size < 1, "as a part beside streaming: write a number of rows"),
        (
            "mask_history",
            _its(keys, "mask_history") and _its(keys, "train_on_prompt"),
            "beside train_on_prompt: remove one",
        ),
        (
            "interleave_probs",
            keys.has("interleave_probs") and mix == "concat",
            "with mix_strategy concat: write interleave_under or interleave_over",
        ),
        *((name, stage != "sft" and _its(keys, name), f"in stage {stage}: remove it") for name in _OF_SFT),
    )


def _of_tuning(keys: KeyReader) -> tuple[_Case, ...]:
    """Keys of methods and adapters: hparams/finetuning_args.py, and _verify_model_args in parser.py."""
    stage, tuning, loss = (
        str(_its(keys, name, keys.rules[name].default)) for name in ("stage", "finetuning_type", "pref_loss")
    )
    replaced = [*(name for name in _OPTIMIZERS if _its(keys, name)), "", ""]
    refers = stage in {"ppo", "kto"} or (stage == "dpo" and loss not in {"orpo", "simpo"})
    smooths = stage == "dpo" and loss != "sigmoid" and _its(keys, "label_smoothing")
    bits = keys.has("quantization_bit")
    return (
        *(
            (
                name,
                tuning != "lora" and (keys.has(name) if name in _EVEN_EMPTY else _its(keys, name)),
                f"with finetuning_type {tuning}: write lora, or remove it",
            )
            for name in _OF_LORA
        ),
        (
            replaced[0],
            replaced[0] and tuning == "lora",
            "with finetuning_type lora: write full or freeze, or remove it",
        ),
        (replaced[1], replaced[1], f"beside {replaced[0]}: remove one"),
        ("stage", stage == "ppo" and not keys.has("reward_model"), "without reward_model: write one"),
        ("label_smoothing", smooths, f"with pref_loss {loss}: remove it"),
        (
            "use_llama_pro",
            _its(keys, "use_llama_pro") and tuning == "full",
            "with finetuning_type full: write freeze or lora",
        ),
        ("pissa_init", _its(keys, "pissa_init") and tuning == "lora" and refers, f"in stage {stage}: remove it"),
        (
            "quantization_bit",
            bits and tuning not in {"lora", "oft"},
            f"with finetuning_type {tuning}: write lora or oft, or remove it",
        ),
        *(
            (name, bits and _its(keys, name), "beside quantization_bit: remove one")
            for name in ("fp8", "pissa_init", "resize_vocab")
        ),
    )


def _of_devices(keys: KeyReader) -> tuple[_Case, ...]:
    """Keys beside DeepSpeed, or on GPUs: get_train_args in hparams/parser.py."""
    is_zero3 = _its(keys, "deepspeed.zero_optimization.stage") == 3
    chooses = _its(keys, "load_best_model_at_end") and str(_its(keys, "stage", "sft")) in {"rm", "ppo"}
    return (
        *(
            (name, has_deepspeed(keys) and _its(keys, name), "beside deepspeed: remove one")
            for name in ("use_galore", "use_apollo")
        ),
        *(
            (name, is_zero3 and _its(keys, name), "with DeepSpeed's ZeRO-3: remove it, or write a file of ZeRO-2")
            for name in ("pure_bf16", "use_unsloth", "use_kt", "pissa_init", "predict_with_generate")
        ),
        ("infer_backend", _its(keys, "infer_backend", "huggingface") != "huggingface", "in training: remove it"),
        ("quantization_device_map", _its(keys, "quantization_device_map") == "auto", "in training: remove it"),
        ("load_best_model_at_end", chooses, "in stages rm and ppo: remove it"),
    )


def has_deepspeed(keys: KeyReader) -> bool:
    """Whether the recipe names a file of DeepSpeed, or has its keys."""
    return any(name.partition(".")[0] == "deepspeed" and its.value for name, its in keys.entries.items())
