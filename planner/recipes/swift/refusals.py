"""What ms-swift 4.6.0 refuses before its first step, whatever the number of GPUs.

planner refuses it, too: a batch that never trains is no answer. The numbers of GPUs that it refuses are in `behaviour`.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.recipes.engine import Case, refuse_cases
from planner.recipes.entries import KeyReader
from planner.recipes.scalars import TRUE_TEXTS, has_shell
from planner.recipes.swift.keys import RULES
from planner.recipes.trainer.keys import MICRO, STEPS

OWN_LOADER = ("sft", "dpo")
"""methods whose loader is ms-swift's (`DataLoaderMixin`), and not prepared by accelerate"""
NO_KL = "apo_zero_unpaired"
"""the loss of KTO without a KL term"""
_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
_NUM_STEPS = "accelerator_config.gradient_accumulation_kwargs.num_steps"
_LEAST_WHITENED = 8
_CHOICES = {
    "truncation_strategy": ("delete", "left", "right", "split"),
    "task_type": ("causal_lm", "seq_cls", "embedding", "reranker", "generative_reranker", "decision"),
    "eval_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best"),
}
_NUMBERS = ("whole", "number", "norm")
# Another room refuses these, with their range.
_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
_WHOLE = ("max_steps", "deepspeed_autotp_size")
"""of which the rows do not say it"""
# Fields of RLHFArguments that SftArguments has not, and their beginnings.
_OF_RLHF = """
    advantage_estimator advantage_reweight async_generate beta center_rewards_coefficient cliprange cliprange_value
    completion_length_limit_scope cpo_alpha delta desirable_weight discopop_tau dynamic_sample
    enable_flattened_weight_sync epsilon epsilon_high gamma generation_batch_size gkd_logits_topk gym_env
    importance_sampling_level kl_coef kl_in_reward label_smoothing lam ld_alpha lmbda local_rollout_forward_batch_size
    log_completions log_entropy log_rollout_offpolicy_metrics loss_weights max_completion_length max_resample_times
    max_turns min_p missing_eos_penalty move_model_batches multi_turn_scheduler num_generations num_generations_eval
    num_iterations num_mini_batches num_ppo_epochs num_sample_generations off_policy_sequence_mask_delta offload_model
    offload_optimizer offload_teacher_model overlong_filter real_tau ref_adapters ref_model ref_model_mixup_alpha
    ref_model_revision ref_model_sync_steps ref_model_type repetition_max_penalty repetition_n_grams response_length
    rlhf_type rpo_alpha scale_rewards seq_kd sft_alpha simpo_gamma sleep_level soft_cache_length soft_max_length
    steps_per_generation sync_ref_model tau_neg tau_pos top_entropy_quantile undesirable_weight use_gym_env use_vllm
    vf_coef wandb_log_unique_prompts whiten_rewards"""
_BEGINNINGS = ("chord_", "cosine_", "fipo_", "reward_", "rlsd_", "rollout_", "sdar_", "teacher_", "vllm_")


def of_rlhf(keys: KeyReader) -> list[str]:
    """The recipe's keys that only `swift rlhf` takes."""
    given = [name for name, entry in keys.written() if entry.value is not None]
    return [name for name in given if name in _OF_RLHF.split() or name.startswith(_BEGINNINGS)]


def read_values(keys: KeyReader) -> None:
    """Reads numbers that a file has as text, and notes values that ms-swift does not take, by the recipe's own names.

    It makes options of a file's values (cli/main.py). So null is the text None, and argparse takes a list for several
    values.
    """
    entries = dict(keys.entries)
    for name, entry in keys.entries.items():
        row, value = RULES.exact(name), entry.value
        if value is None or value == []:
            made = "found null, of which ms-swift makes the text None" if value is None else "found an empty list"
            keys.wrong(f"{name}: {made}. Remove it, or write a value")
            continue
        kind = "whole" if name in _WHOLE else row.value if row else "any"
        is_read = kind in {*_NUMBERS, "truth"} and (name not in _SIZES or _number(value, "whole") is not None)
        if (not is_read and name not in _CHOICES) or (isinstance(value, str) and has_shell(value)):
            continue
        if isinstance(value, list | dict):
            keys.refuse(name, "Write a single value")
        elif name in _CHOICES and str(value) not in _CHOICES[name]:
            keys.refuse(name, f"Write {', '.join(_CHOICES[name])}")
        elif kind in _NUMBERS and (number := _number(value, kind)) is None:
            keys.refuse(name, "Write a whole number" if kind == "whole" else "Write a number")
        elif kind in _NUMBERS and isinstance(value, str):
            entries[name] = replace(entry, value=number)
    keys.entries = entries


def _number(value: object, kind: str) -> float | None:
    try:
        return int(str(value)) if kind == "whole" else float(str(value))
    except ValueError:
        return None


def refuse_together(keys: KeyReader, method: str, command: str) -> None:
    """Notes what is missing, and keys that ms-swift refuses beside others.

    Args:
        keys: the recipe's keys, under the Trainer's names.
        method: `sft`, or the method of `swift rlhf`.
        command: `sft`, `pt` or `rlhf`, empty for a file.
    """
    if not (keys.has("model_name_or_path") or keys.peek("load_args") is True):
        keys.wrong(f"model: found nothing, and ms-swift refuses that. Write {keys.fix.format('model')}")
    if not any(keys.has(name) and keys.peek(name, "unknown") for name in ("dataset", "cached_dataset")):
        keys.wrong(f"dataset: found nothing, and ms-swift refuses that. Write {keys.fix.format('dataset')}")
    is_derived = not keys.has(STEPS) or keys.entries[STEPS].is_default
    if is_derived and keys.has(_NUM_STEPS):
        keys.wrong(f"{_NUM_STEPS}: ms-swift refuses it if 16 / m / GPUs is above 1. Write {STEPS} instead")
    if method == "kto" and is_derived and keys.peek("loss_type") not in (NO_KL, [NO_KL]):
        # prepare_kto_dataset multiplies by it. Its default is in the Trainer's arguments alone.
        keys.wrong(f"{STEPS}: ms-swift's KTO fails without it (a TypeError). Write {keys.fix.format(STEPS)}")
    for name in of_rlhf(keys) if command in {"sft", "pt"} else ():
        keys.refuse(name, f"swift {command} refuses it: remove it, or start swift rlhf")
    cases = (*_of_data(keys, method, command), *_of_evaluation(keys), *_of_devices(keys), *_of_methods(keys, method))
    refuse_cases(keys, "ms-swift", cases)


def refuse_spread(keys: KeyReader, gpus: int, processes: int) -> None:
    """Notes what ms-swift refuses where the processes of a machine see several GPUs each (`is_mp`).

    Args:
        keys: the recipe's keys, as it has them.
        gpus: how many GPUs CUDA_VISIBLE_DEVICES names.
        processes: how many processes a machine has.
    """
    if gpus % processes:
        keys.wrong(
            f"CUDA_VISIBLE_DEVICES: found {gpus} GPUs for {processes} processes, and ms-swift refuses parts of GPUs. "
            f"Write NPROC_PER_NODE={gpus}"
        )
    if gpus < 2 * processes:
        return
    generates = keys.peek("rlhf_type") in {"grpo", "gkd"}
    for name, is_refused in {
        "deepspeed": keys.is_set("deepspeed"),
        "fsdp": keys.is_set("fsdp"),
        "use_liger_kernel": keys.peek("use_liger_kernel") is True,
        "use_vllm": generates and keys.peek("use_vllm") is True,
    }.items():
        if is_refused:
            keys.refuse(name, f"ms-swift refuses it where a process sees several GPUs: write NPROC_PER_NODE={gpus}")


def _of_data(keys: KeyReader, method: str, command: str) -> Iterator[Case]:
    """Keys of the data: base_args/base_args.py, pipelines/train/sft.py, dataloader/shard.py, transformers' Trainer."""
    streams, steps = keys.peek("streaming") is True, keys.peek("max_steps", -1)
    yield streams and isinstance(steps, int) and steps <= 0, "streaming", "without max_steps: write both"
    for name in ("packing", "streaming"):
        yield keys.peek("lazy_tokenize") is True and keys.peek(name) is True, "lazy_tokenize", f"beside {name}"
    for name in ("cached_dataset", "cached_val_dataset"):
        yield keys.has(name) and streams, name, "beside streaming: remove one"
        yield keys.has(name) and method == "grpo", name, "in GRPO"
    is_sorted = keys.peek("group_by_length") is True and keys.peek("train_dataloader_shuffle") is False
    is_read = method in OWN_LOADER and not streams and keys.read("sequence_parallel_size") == 1
    yield is_sorted and is_read, "group_by_length", "without train_dataloader_shuffle"
    is_pretraining = command == "pt" and keys.peek("use_chat_template") is not True
    is_pretraining |= not command and keys.peek("use_chat_template") is False
    is_pretraining &= keys.peek("task_type", "causal_lm") == "causal_lm"
    is_split = keys.peek("truncation_strategy") == "split" and method not in {"grpo", "gkd"}
    yield is_split and not is_pretraining, "truncation_strategy", "with split outside of swift pt: write delete"


def holds_out(keys: KeyReader) -> bool:
    """Whether it takes rows to evaluate out of those to train on, unless eval_strategy is `no`."""
    ratio = keys.value("split_dataset_ratio")
    is_read = keys.has("dataset") and not keys.has("val_dataset") and keys.value("streaming") is not True
    return isinstance(ratio, int | float) and ratio > 0 and is_read


def _of_evaluation(keys: KeyReader) -> Iterator[Case]:
    """Keys of the rows that are evaluated: dataset/dataset_meta.py, arguments/sft_args.py, transformers' Trainer."""
    strategy, ratio = keys.peek("eval_strategy"), keys.peek("split_dataset_ratio")
    if isinstance(ratio, int | float):
        none_left = ratio >= 1 and holds_out(keys) and strategy != "no"
        yield none_left, "split_dataset_ratio", "from 1 on, because no row is left to train on"
    follows = strategy == "best" and keys.entries["eval_strategy"].is_default
    yield follows, "save_strategy", "as best if eval_strategy follows it: write eval_strategy steps or epoch"


def _of_devices(keys: KeyReader) -> Iterator[Case]:
    """Keys of FSDP and of the warmup: arguments/sft_args.py, trainers/arguments.py."""
    wrong = isinstance(keys.peek("fsdp"), int | float | list)
    yield wrong, "fsdp", "as a number or a list: write fsdp2, or the name of a file"
    # An empty mapping is the text {} for ms-swift, and so a value.
    both = all(keys.peek(name) not in (None, "") or keys.has_below(name) for name in ("fsdp", "deepspeed"))
    yield both, "fsdp", "beside deepspeed: remove one"
    is_sharded = keys.peek("fsdp") == "fsdp2" and str(keys.peek("save_only_model")).lower() in TRUE_TEXTS
    yield is_sharded, "save_only_model", "beside fsdp fsdp2, which saves shards: write false"
    ratio = keys.peek("warmup_ratio")
    if isinstance(ratio, int | float) and ratio:
        yield bool(keys.peek("warmup_steps")), "warmup_ratio", "beside warmup_steps: remove one"
        yield ratio >= 1, "warmup_ratio", "from 1 on: write warmup_steps"


def _of_methods(keys: KeyReader, method: str) -> Iterator[Case]:
    """Keys of one method: arguments/rlhf_args.py, pipelines/train/kto.py, TRL's PPOTrainer."""
    packs = next((name for name in ("packing", "padding_free") if keys.peek(name) is True), "")
    if packs:
        flashes = str(keys.peek("attn_implementation")) in _FLASH
        yield not flashes, packs, "without flash attention: write attn_impl flash_attn"
        yield method in {"orpo", "simpo", "cpo", "rm", "ppo"}, packs, f"in {method}"
    shares = keys.read("sequence_parallel_size") > 1 and method not in {*OWN_LOADER, "grpo"}
    yield shares, "sequence_parallel_size", f"in {method}"
    if method == "grpo":
        is_cut = str(keys.peek("truncation_strategy", "left")) not in {"left", "delete"}
        yield is_cut, "truncation_strategy", "in GRPO: write left or delete"
        yield keys.peek("use_vllm") is True and not keys.has("vllm_mode"), "use_vllm", "without vllm_mode"
        yield keys.has("vllm_mode") and keys.peek("use_vllm") is not True, "vllm_mode", "without use_vllm"
    if method in {"grpo", "gkd"} and keys.has("generation_batch_size"):
        is_twice = keys.has("steps_per_generation")
        yield is_twice, "steps_per_generation", "beside generation_batch_size on most counts: remove one"
        why = "on counts whose micro-batches do not divide it: write steps_per_generation"
        yield method == "gkd" and not is_twice, "generation_batch_size", why
    if method == "gkd":
        splits = keys.peek("accelerator_config.split_batches") is True
        yield splits, "accelerator_config.split_batches", "on most counts in GKD: write false"
    if method == "ppo":
        rows, parts = keys.read(MICRO) * keys.read(STEPS), keys.read("num_mini_batches")
        yield rows % parts, "num_mini_batches", f"if it does not divide m x A, {rows}"
        each = rows // parts
        yield each % keys.read(MICRO), "num_mini_batches", "in the middle of a micro-batch"
        # A of ms-swift differs at each count, and these checks are for one.
        derived = not keys.has(STEPS) or keys.entries[STEPS].is_default
        cuts = parts > 1 or keys.peek("whiten_rewards") is True
        yield derived and cuts, "num_mini_batches" if parts > 1 else "whiten_rewards", f"on some counts without {STEPS}"
        is_short = keys.peek("whiten_rewards") is True and each < _LEAST_WHITENED
        yield is_short, "whiten_rewards", f"with mini-batches below {_LEAST_WHITENED}"
