"""A TRL recipe's keys -> the draft of a job."""

from math import sqrt
from pathlib import PurePath
from typing import Any

from planner.interop.drafting import (
    DATA_OF,
    Dataset,
    Options,
    carry,
    job_name,
    order_sections,
    set_batch,
    set_data,
    set_workers,
    whole_if,
)
from planner.interop.entries import Keys
from planner.interop.recipe import Draft, product
from planner.interop.scalars import number
from planner.interop.trl_runs import TrlFacts

# TRL's own learning rates where a recipe says none.
_RATES = {"sft": 2e-5, "dpo": 1e-6, "orpo": 1e-6, "kto": 1e-6, "grpo": 1e-6}
_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}


# Keys that make another loss of a method, and the values with which they do not.
_CHANGING: dict[str, tuple[Any, ...]] = {
    "label_smoothing_factor": (0,),
    "neftune_noise_alpha": (0,),
}
_CHANGING_PREFERENCES: dict[str, tuple[Any, ...]] = {
    "rpo_alpha": (),
    "ld_alpha": (1,),
    "use_weighting": (False,),
    "f_divergence_type": ("reverse_kl",),
    "sync_ref_model": (False,),
    "force_use_ref_model": (False,),
    "loss_weights": ([1], [1.0]),
}
_OF_LOSSES = (
    "loss_type",
    "beta",
    "label_smoothing",
    "reference_free",
    "desirable_weight",
    "undesirable_weight",
    "discopop_tau",
    "f_alpha_divergence_coef",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "epsilon",
    "epsilon_high",
    "delta",
    "num_generations",
    "num_iterations",
    "scale_rewards",
    "reward_weights",
    "temperature",
)


def changing(loss: str) -> dict[str, tuple[Any, ...]]:
    """Keys that make another loss of `loss`, with the values that do not."""
    if loss == "sft":
        return _CHANGING
    alone = {"reference_free": (False,)} if loss == "ipo" else {}
    return {**_CHANGING, **_CHANGING_PREFERENCES, **alone}


def fill(draft: Draft, keys: Keys, options: Options, facts: TrlFacts, held: int, *, is_own: bool) -> None:
    """Everything that a job says, from what the recipe says."""
    method = facts.method
    names = {key: PurePath(str(keys.value(key, ""))).name for key in ("run_name", "hub_model_id", "output_dir")}
    told = next((key for key, name in names.items() if name), "the method")
    draft.derive("name", name := job_name(*names.values(), f"trl-{method}"), f"name {name}: {told}")
    _set_model(draft, keys)
    _set_data(draft, keys, method)
    if is_own:
        _note_loss(draft, keys)
    else:
        _set_objective(draft, keys, facts)
    how = product(facts.tuned_gpus, facts.micro, facts.accumulation, facts.batch)
    if facts.splits_batches:
        how = f"{facts.batch} = {facts.micro} x {facts.accumulation}: split_batches counts over all GPUs"
    set_batch(draft, keys, options, facts.batch, held, how)
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        keys.value(key)
    if facts.max_steps:
        carry(draft, keys, "max_steps", "train.steps", facts.max_steps)
        keys.value("num_train_epochs")
    else:
        epochs = facts.epochs or 3.0
        carry(draft, keys, "num_train_epochs", "train.epochs", whole_if(epochs))
    carry(draft, keys, "seed", "train.seed", keys.whole("seed", 42, least=0))
    _set_optimizer(draft, keys, method)
    _set_schedule(draft, keys, facts)
    clips = "max_grad_norm" not in keys.entries or keys.has("max_grad_norm")
    clip = keys.number("max_grad_norm", 1.0) if clips else 0.0
    carry(draft, keys, "max_grad_norm", "train.clip_norm", clip or None)
    is_half = keys.value("bf16") is True or keys.value("fp16") is True
    why = "fp16 there; bf16 is what planner has" if keys.value("fp16") is True else "as bf16 says"
    precision = "bf16" if is_half else "fp32"
    draft.derive("train.precision", precision, f"train.precision {precision}: {why if is_half else 'bf16 is not set'}")
    if keys.value("gradient_checkpointing") is True:
        carry(draft, keys, "gradient_checkpointing", "train.activation_checkpointing", True)
    if facts.evaluates:
        _set_eval(draft, keys, facts)
    set_workers(draft, facts.batch, facts.tuned_gpus)
    order_sections(draft)


def _set_model(draft: Draft, keys: Keys) -> None:
    draft.set("model.kind", "hf")
    carry(draft, keys, "model_name_or_path", "model.path", keys.text("model_name_or_path"))
    if keys.has("model_revision"):
        carry(draft, keys, "model_revision", "model.revision", keys.text("model_revision"))
    key = "max_seq_length" if keys.has("max_seq_length") else "max_length"
    if keys.has("max_seq_length") and keys.has("max_length"):
        keys.wrong("max_seq_length and max_length: both say how long a sample is; take one out")
    if key in keys.entries and not keys.has(key):
        keys.lacks(f"{key}: found null, no limit there; write the tokens of the longest sample, such as {key}=4096")
    carry(draft, keys, key, "model.context", keys.whole(key, 1024, least=2))
    attention = keys.value("attn_implementation")
    if attention in {"sdpa", "eager", "flash_attention_2"}:
        carry(draft, keys, "attn_implementation", "model.attention", attention)
    elif attention:
        draft.drop("attn_implementation", f"{attention}: planner has sdpa, eager and flash_attention_2")
    for name in ("chat_template", "chat_template_path"):
        if keys.has(name):
            keys.value(name)
            draft.drop(name, "see to do")
            draft.to_do.append(f"model.chat_template: save the recipe's {name} as a Jinja file and name it there")
    if keys.flag("use_peft"):
        _set_lora(draft, keys)


def _set_lora(draft: Draft, keys: Keys) -> None:
    rank, alpha, how = keys.whole("lora_r", 16), keys.number("lora_alpha", 32.0), ""
    if keys.flag("use_rslora"):
        how = f" ({number(alpha)} x sqrt({rank}): use_rslora scales by alpha / sqrt(rank), planner by alpha / rank)"
        alpha *= sqrt(rank)
    lora: dict[str, Any] = {"rank": rank, "alpha": alpha, "dropout": keys.number("lora_dropout", 0.05)}
    if targets := _lora_targets(keys):
        lora["targets"] = targets
    shown = ", ".join(targets) or "all linear layers but the head"
    draft.derive("model.lora", lora, f"model.lora rank {rank}, alpha {number(alpha)}{how}, on {shown}")
    for name in ("use_dora", "lora_modules_to_save", "lora_target_parameters"):
        if keys.value(name):
            keys.refuse(name, "planner trains plain low-rank adapters alone; take it out if that is what you want")
    for name in ("load_in_4bit", "load_in_8bit"):
        if keys.value(name) is True:
            draft.drop(name, "the frozen weights are not quantized here: more memory, no rounding")


def _lora_targets(keys: Keys) -> list[str]:
    """The layers that get adapters; none: all linear ones. peft takes a single word as a pattern of whole names."""
    found = keys.value("lora_target_modules")
    names = [str(each) for each in found] if isinstance(found, list) else [str(found)] if found else []
    if names == ["all-linear"]:
        return []
    if not names:
        keys.lacks(
            "lora_target_modules: found nothing, and TRL leaves the choice to peft (q_proj and v_proj in Llamas); "
            "write the layers' names in the recipe, or lora_target_modules=all-linear"
        )
    elif len(names) == 1:
        keys.refuse("lora_target_modules", "write two names or more, as a list in the file, or all-linear")
    return names


def _set_data(draft: Draft, keys: Keys, method: str) -> None:
    kind = DATA_OF.get(method, "pairs" if method == "orpo" else "chat")
    datasets, columns = _datasets(keys)
    set_data(draft, kind, datasets)
    if keys.has("max_prompt_length") and not keys.flag("packing"):
        carry(draft, keys, "max_prompt_length", "data.max_prompt", keys.whole("max_prompt_length"))
    if keys.has("truncation_mode"):
        side = "end" if keys.value("truncation_mode") == "keep_start" else "start"
        draft.derive(
            "data.cut_prompt", side, f"data.cut_prompt {side}: truncation_mode {keys.value('truncation_mode')}"
        )
    if method != "sft":
        return
    if keys.flag("packing"):
        carry(draft, keys, "packing", "data.packing", True)
    only = keys.value("assistant_only_loss") is True or keys.value("completion_only_loss") is True
    if only or ("messages" not in columns and {"prompt", "completion"} & columns):
        draft.derive("data.loss_on", "completions", "data.loss_on completions")
    else:
        draft.derive("data.loss_on", "all", "data.loss_on all: TRL trains on every token of a conversation unless told")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _datasets(keys: Keys) -> tuple[list[Dataset], set[str]]:
    """What the recipe names, and the columns that it names."""
    columns: set[str] = set()
    for name in [key for key in keys.entries if key.startswith("dataset_mixture.")]:
        keys.value(name)
    mixture = keys.value("dataset_mixture.datasets")
    if isinstance(mixture, list):
        found = []
        for each in mixture:
            if isinstance(each, dict) and isinstance(each.get("id"), str):
                columns |= {str(column) for column in _listed(each.get("columns"))}
                config, split = each.get("config"), each.get("split")
                found.append(
                    Dataset(
                        weight=each.get("weight"),
                        seed=keys.whole("dataset_mixture.seed", 0, least=0),
                        name=each["id"],
                        config=str(config) if config else None,
                        split=str(split) if split else None,
                    )
                )
        return found, columns
    name = keys.value("dataset_name")
    if not isinstance(name, str):
        return [], columns
    config, split = keys.value("dataset_config"), keys.value("dataset_train_split", "train")
    return [Dataset(name=name, config=str(config) if config else None, split=str(split))], columns


def _note_loss(draft: Draft, keys: Keys) -> None:
    """All that a loss of the user's own must know of the recipe's."""
    known = [*_OF_LOSSES, *_CHANGING, *_CHANGING_PREFERENCES]
    draft.set("objective", {key: keys.value(key) for key in known if keys.has(key)})
    if "beta" not in draft.job["objective"]:
        draft.to_do.append("the loss's own settings are TRL's defaults where the recipe says none, such as beta")


def _set_objective(draft: Draft, keys: Keys, facts: TrlFacts) -> None:
    if facts.loss == "sft":
        draft.derive(
            "objective", {"kind": "sft"}, "objective sft: the mean over all tokens of the global batch, as there"
        )
        return
    beta = keys.number("beta", 0.1)
    objective: dict[str, Any] = {"kind": facts.loss, "beta": beta}
    text = ""
    if facts.loss == "dpo" and (smoothing := keys.number("label_smoothing", 0.0)):
        objective["label_smoothing"] = smoothing
    if facts.loss == "dpo" and keys.value("reference_free") is True:
        objective["reference"] = "none"
    elif facts.loss in {"dpo", "ipo"} and keys.value("precompute_ref_log_probs") is True:
        objective["reference"] = "cached"
    if facts.loss == "kto":
        objective["desirable_weight"] = keys.number("desirable_weight", 1.0)
        objective["undesirable_weight"] = keys.number("undesirable_weight", 1.0)
        text = ": the KL baseline is over the whole global batch here; there over the micro-batches of all GPUs"
    if facts.loss in DATA_OF:
        shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
        draft.derive("objective", objective, f"objective {shown}{text}")


def _set_optimizer(draft: Draft, keys: Keys, method: str) -> None:
    name = str(keys.value("optim", "adamw_torch"))
    if name in {"sgd", "rmsprop"}:
        draft.set("train.optimizer.kind", name)
    elif name.startswith(("adamw", "paged_adamw")):
        carry(draft, keys, "optim", "train.optimizer.kind", "adamw")
        if "8bit" in name or "paged" in name:
            draft.drop("optim", f"{name} keeps its state in 8 bits or on the CPU; here it is fp32 and sharded")
    else:
        keys.refuse(
            "optim", "planner has adamw, rmsprop and sgd; write optim=adamw_torch, or train by a loop of your own"
        )
        draft.set("train.optimizer.kind", "adamw")
    carry(draft, keys, "learning_rate", "train.optimizer.lr", keys.number("learning_rate", _RATES[method]))
    if keys.has("weight_decay"):
        carry(draft, keys, "weight_decay", "train.optimizer.weight_decay", keys.number("weight_decay"))
    if keys.has("adam_beta1") or keys.has("adam_beta2"):
        betas = [keys.number("adam_beta1", 0.9), keys.number("adam_beta2", 0.999)]
        draft.derive("train.optimizer.betas", betas, f"train.optimizer.betas {betas}: adam_beta1, adam_beta2")
    if keys.has("adam_epsilon"):
        carry(draft, keys, "adam_epsilon", "train.optimizer.eps", keys.number("adam_epsilon"))


def _set_schedule(draft: Draft, keys: Keys, facts: TrlFacts) -> None:
    name = str(keys.value("lr_scheduler_type", "linear"))
    if name not in _SCHEDULES:
        keys.refuse("lr_scheduler_type", f"planner has {', '.join(_SCHEDULES)}; write lr_scheduler_type=cosine")
    kind = _SCHEDULES.get(name, "cosine")
    schedule: dict[str, Any] = {"kind": kind, "warmup": facts.warmup}
    text = f"train.schedule {kind}: lr_scheduler_type {name}, warmup {facts.warmup} ({facts.warmup_key})"
    if name == "constant":
        schedule["warmup"], text = (
            "0 steps",
            "train.schedule constant: lr_scheduler_type constant takes no warmup there",
        )
    if name == "cosine_with_min_lr":
        fraction = keys.number("lr_scheduler_kwargs.min_lr_rate", 0.0)
        if not fraction and keys.has("lr_scheduler_kwargs.min_lr"):
            fraction = keys.number("lr_scheduler_kwargs.min_lr") / (keys.number("learning_rate", 0.0) or 1.0)
        schedule["final_fraction"] = fraction
        text += f", down to {number(fraction)} of the rate (lr_scheduler_kwargs)"
    draft.derive("train.schedule", schedule, text)


def _set_eval(draft: Draft, keys: Keys, facts: TrlFacts) -> None:
    size = keys.value("dataset_mixture.test_split_size", keys.value("test_split_size"))
    if isinstance(size, int) and size > 0:
        draft.derive("eval.samples", size, f"eval.samples {size}: test_split_size, held out of the rows")
    else:
        draft.set("eval.samples", 0)
        draft.to_do.append(
            "eval.samples: say how many rows to hold out of the training rows; there a test split is evaluated"
        )
    draft.derive("eval.every", facts.eval_every, f"eval.every {facts.eval_every}: eval_strategy, eval_steps")
