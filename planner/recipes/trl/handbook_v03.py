"""Keys and defaults of the alignment-handbook's recipes up to v0.3 and of its ORPO recipes.

Their scripts (run_sft.py, run_dpo.py, run_orpo.py, run_cpt.py) took data sets as `dataset_mixer`, NAME: SHARE.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.files.messages import show
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.row_sources import DatasetSource
from planner.recipes.trl.keys import OLDER_HANDBOOK

MIXER = "dataset_mixer"
CPT = "cpt"
"""continued pretraining, the name of a script and a folder: the loss of SFT on plain text"""
# run_sft.py always packed its rows, and the handbook's DPOConfig had another default optimizer than TRL's.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "sft": {"packing": True, "packing_strategy": "wrapped"},
    "dpo": {"optim": "rmsprop"},
}
_WHOSE = "the handbook's own scripts up to v0.3"
# Each shipped recipe of DPO or ORPO has one of the first keys, and none of SFT has. Forks for GRPO have the others.
_OF_PAIRS = ("beta", "loss_type", "max_length", "max_prompt_length")
_OF_GROUPS = ("system_prompt", "use_vllm", "reward_funcs", "max_completion_length")


def is_older(names: Iterable[str]) -> bool:
    """Whether a recipe with these keys names its data as the older scripts take it, by `dataset_mixer`."""
    return any(key.partition(".")[0] == MIXER for key in names)


def keys_of(entries: Mapping[str, Entry]) -> tuple[str, ...]:
    """The recipe's keys that only the older scripts take."""
    names = (key.partition(".")[0] for key in entries)
    return tuple(dict.fromkeys(name for name in names if name in OLDER_HANDBOOK))


def method_of(entries: Mapping[str, Entry]) -> tuple[str, str]:
    """`sft` and its reason for an older recipe without keys of pairs or groups, else two empty texts."""
    if is_older(entries) and not any(key in entries for key in _OF_PAIRS + _OF_GROUPS):
        return "sft", f"{MIXER} without {', '.join(_OF_PAIRS)}"
    return "", ""


def rename(keys: KeyReader) -> None:
    """Adds `attn_implementation` for `use_flash_attention_2: true`, unless the recipe sets it."""
    old = keys.entries.get("use_flash_attention_2")
    if old is not None and old.value is True and not keys.has("attn_implementation"):
        where = f"{old.where} (use_flash_attention_2)"
        new = replace(old, value="flash_attention_2", where=where, is_default=True)
        keys.entries = {**keys.entries, "attn_implementation": new}


def add_defaults(keys: KeyReader, method: str) -> None:
    """Adds the defaults of the older scripts that differ from TRL's."""
    if is_older(keys.entries):
        said = {"bf16": False, **_DEFAULTS.get(method, {})}
        made = {key: Entry(value=value, where=_WHOSE, is_default=True) for key, value in said.items()}
        keys.entries = {**made, **keys.entries}


def datasets(keys: KeyReader) -> tuple[list[DatasetSource], list[DatasetSource]]:
    """The data sets of `dataset_mixer` to train on and to evaluate on.

    Its script (`mix_datasets`) reads each split of each set. It pairs those with train in their name with the shares in
    order, so that it leaves out the last ones where a set has several. It takes test splits whole.
    """
    shares = {key.removeprefix(f"{MIXER}."): keys.value(key) for key in keys.entries if key.startswith(f"{MIXER}.")}
    configs, splits = keys.value("dataset_configs"), keys.value("dataset_splits", ["train", "test"])
    configs = configs if isinstance(configs, list) and len(configs) == len(shares) else [None] * len(shares)
    splits = [str(split) for split in splits] if isinstance(splits, list) else ["train", "test"]

    def named(word: str) -> list[DatasetSource]:
        return [
            DatasetSource(name=name, config=str(config) if config else None, split=split)
            for name, config in zip(shares, configs, strict=True)
            for split in splits
            if word in split
        ]

    paired = zip(named("train"), shares, strict=False)
    train = [(source, share_of(keys, f"{MIXER}.{name}", shares[name])) for source, name in paired]
    return [replace(source, fraction=share) for source, share in train if share != 0], named("test")


def share_of(keys: KeyReader, key: str, value: Any) -> float | None:
    """The part of a set's rows that a recipe takes, None for all. A part that its script refuses is a mistake."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    keys.lacks(f"{key}: found {show(value)}. Write a number from 0 to 1, the part of the rows to take")
    return None
