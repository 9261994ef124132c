"""Recognises the DPO repository and HALOs by several of their keys, because many systems have a `train.py`."""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.recipes.entries import Entry
from planner.recipes.upstream_defaults import DPO_DEFAULTS, DPO_MODELS, HALOS_DEFAULTS

# A single key may belong to any system.
_FEWEST_MARKS = 2
_TRAINERS = ("BasicTrainer", "FSDPTrainer", "TensorParallelTrainer")
_DPO_LOSSES = ("sft", "dpo", "ipo")
_HALOS_MODELS = ("llama", "mistral", "pythia", "gemma", "qwen", "zephyr", "archangel")
_HALOS_LOSSES = (
    "sft", "csft", "dpo", "cdpo", "ipo", "simpo", "slic", "kto", "ppo", "grpo", "bradley-terry", "orpo",
    "kto-zero", "kto-simple", "kto-surprisal", "kto-logsigmoid",
)  # fmt: skip
# Keys that many other systems use, too.
_COMMON_KEYS = {
    *("seed", "lr", "optimizer", "batch_size", "gradient_accumulation_steps", "max_length", "max_grad_norm", "debug"),
    *("warmup", "warmup_steps", "weight_decay", "eps", "beta1", "beta2", "cache_dir", "trainer", "online"),
    *("exp_name", "n_epochs", "eval_every", "eval_batch_size", "wandb.enabled", "wandb.entity", "wandb.project"),
}
_DPO_KEYS = frozenset(DPO_DEFAULTS) - _COMMON_KEYS
_HALOS_KEYS = (frozenset(HALOS_DEFAULTS) - _COMMON_KEYS) | {"loss.trainer", "loss.dataloader", "mode", "use_fsdp"}


def is_dpo_repository(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether several keys of the recipe itself are typical of the DPO repository. `choices` are Hydra's groups."""
    marks = [
        *(key for key in _written(entries) if key in _DPO_KEYS),
        *_marked(choices, "loss", _DPO_LOSSES),
        *_marked(choices, "model", (*DPO_MODELS, "blank_model")),
        *(key for key in _written(entries) if key == "trainer" and entries[key].value in _TRAINERS),
    ]
    return _is_enough(marks, entries, choices, DPO_DEFAULTS)


def is_halos(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether several keys of the recipe itself are typical of HALOs. `choices` are Hydra's groups."""
    marks = [
        *(key for key in _written(entries) if key in _HALOS_KEYS),
        *_marked(choices, "loss", _HALOS_LOSSES),
        *_marked(choices, "model", _HALOS_MODELS),
    ]
    return _is_enough(marks, entries, choices, HALOS_DEFAULTS)


def is_legacy_halos(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether the recipe is of HALOs' branch legacy, whose script is called train.py."""
    loss = choices.get("loss", "")
    return not {"mode", "use_fsdp"}.isdisjoint(entries) or (loss in _HALOS_LOSSES and loss not in _DPO_LOSSES)


def _written(entries: Mapping[str, Entry]) -> list[str]:
    return [key for key, its in entries.items() if not its.is_default]


def _marked(choices: Mapping[str, str], group: str, names: Iterable[str]) -> list[str]:
    """`[group]` if the choice for it begins with one of the names, else an empty list."""
    return [group] if choices.get(group, "").startswith(tuple(names)) else []


def _is_enough(
    marks: list[str], entries: Mapping[str, Entry], choices: Mapping[str, str], defaults: Mapping[str, Any]
) -> bool:
    """Whether there are two marks, or one model, loss or trainer of the system and no key of another system."""
    foreign = [key for key in _written(entries) if key not in defaults]
    by_value = [mark for mark in marks if mark in choices or mark == "trainer"]
    return len(set(marks)) >= _FEWEST_MARKS or (not foreign and bool(by_value))
