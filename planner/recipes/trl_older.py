"""The alignment-handbook's recipes up to v0.3 and its ORPO ones: keys and defaults that its newer recipes do not have.

Their scripts (run_sft.py, run_dpo.py, run_orpo.py, run_cpt.py) took a data set as `dataset_mixer`, NAME: SHARE.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.recipes.drafting import Dataset
from planner.recipes.entries import Entry, Keys
from planner.recipes.recipe import Draft
from planner.recipes.trl_keys import OLDER_HANDBOOK

MIXER = "dataset_mixer"
CPT = "cpt"
"""the method, by its script and its folder: the loss of SFT on plain text"""
# run_sft.py packed its rows by a constant of its own, and DPOConfig had another optimizer than TRL's.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "sft": {"packing": True, "packing_strategy": "wrapped"},
    "dpo": {"optim": "rmsprop"},
}
_WHOSE = "the handbook's own scripts up to v0.3"
# What tells a recipe of DPO or ORPO from one of SFT: all that were shipped have one of them.
_OF_PAIRS = ("beta", "loss_type", "max_length", "max_prompt_length")
REASONS = {
    "use_flash_attention_2": "attn_implementation says it now",
    "preprocessing_num_workers": "data is read once",
    "text_column": "the rows must have the form in to do",
    "truncation_side": "data.cut_prompt says what is cut",
    "auto_insert_empty_system_msg": "the model's chat template says what stands before the first turn",
    "base_model_revision": "of the model under an adapter; model.revision says one",
    "model_code_revision": "no code of a model's repository is run",
    "dataset_splits": "those with train in their name are in data",
}


def is_older(entries: Mapping[str, Entry]) -> bool:
    """Whether the recipe names its data as the older scripts want it."""
    return any(key.partition(".")[0] == MIXER for key in entries)


def keys_of(entries: Mapping[str, Entry]) -> tuple[str, ...]:
    """The keys that the older scripts alone take."""
    names = (key.partition(".")[0] for key in entries)
    return tuple(dict.fromkeys(name for name in names if name in OLDER_HANDBOOK))


def method_of(entries: Mapping[str, Entry]) -> tuple[str, str]:
    """`sft` for an older recipe that has no key of pairs, and what says so; else nothing."""
    if is_older(entries) and not any(key in entries for key in _OF_PAIRS):
        return "sft", f"{MIXER} without {', '.join(_OF_PAIRS)}"
    return "", ""


def rename(keys: Keys) -> None:
    """`use_flash_attention_2: true` under its name of today, where that is not there."""
    old = keys.entries.get("use_flash_attention_2")
    if old is not None and old.value is True and not keys.has("attn_implementation"):
        where = f"{old.where} (there use_flash_attention_2)"
        new = replace(old, value="flash_attention_2", where=where, is_default=True)
        keys.entries = {**keys.entries, "attn_implementation": new}


def add_defaults(keys: Keys, method: str) -> None:
    """What the older scripts did where their recipe says nothing, and TRL's do not."""
    if is_older(keys.entries):
        said = {"bf16": False, **_DEFAULTS.get(method, {})}
        made = {key: Entry(value=value, where=_WHOSE, is_default=True) for key, value in said.items()}
        keys.entries = {**made, **keys.entries}


def datasets(keys: Keys, draft: Draft) -> list[Dataset]:
    """The data sets of `dataset_mixer`, each with its splits to train on; a share is the first rows of a split."""
    shares = {key.removeprefix(f"{MIXER}."): keys.value(key) for key in keys.entries if key.startswith(f"{MIXER}.")}
    configs, splits = keys.value("dataset_configs"), keys.value("dataset_splits", ["train"])
    configs = configs if isinstance(configs, list) and len(configs) == len(shares) else [None] * len(shares)
    trained = [str(split) for split in splits if "train" in str(split)] if isinstance(splits, list) else ["train"]
    parts = {name: share for name, share in shares.items() if isinstance(share, int | float) and share < 1}
    if parts:
        shown = ", ".join(f"the first {share:.6g} of {name}" for name, share in parts.items())
        draft.to_do.append(f"{MIXER}: there {shown} are trained on (rows in their order); leave the others out")
    return [
        Dataset(name=name, config=str(config) if config else None, split=split)
        for name, config in zip(shares, configs, strict=True)
        for split in trained
    ]
