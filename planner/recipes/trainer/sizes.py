"""Reads what decides the batch of a recipe on the Trainer, by its rows, from YAML, JSON texts and files."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.base.disk import is_file
from planner.errors import RecipeError
from planner.files.messages import cut, show
from planner.recipes.config_reader import beside, mapping_of, text_of
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.scalars import Unresolved
from planner.recipes.trainer.accelerate import DeepSpeedSizes, LaunchSettings, sizes_in
from planner.recipes.trainer.keys import CLOSED, MICRO, SECTIONS, STEPS, effect_of, section_of

# Fields of TrainingArguments and TRL's configurations whose text is a JSON object.
_OBJECTS = ("accelerator_config", "fsdp_config", "deepspeed", "model_init_kwargs", "lr_scheduler_kwargs")
# Those whose text may also be the path of a JSON file.
_FILES = ("accelerator_config", "deepspeed")
_KWARGS = "accelerator_config.gradient_accumulation_kwargs"
_NUM_STEPS = f"{_KWARGS}.num_steps"
SPLITS = "accelerator_config.split_batches"


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The numbers of a recipe that make its batch, as the Trainer reads them."""

    micro: int
    """per_device_train_batch_size, which counts over all GPUs if `splits`"""
    accumulation: int
    splits: bool
    num_steps: bool
    """whether accelerator_config has num_steps, which is then `accumulation`"""
    accelerator: Mapping[str, Any] | None
    """accelerator_config without what changes the batch. None if the recipe does not have it"""
    deepspeed: DeepSpeedSizes | None
    """the sizes in DeepSpeed's file, None without DeepSpeed"""
    unread: tuple[str, ...] = field(default=())
    """files that the recipe names and that are not on this machine"""


def sizes_of(keys: KeyReader, method: str, launch: LaunchSettings | None) -> BatchSizes:
    """The numbers that make the batch. Notes mistakes in `keys`, also for what makes the batch unknown."""
    _refuse_by_table(keys)
    micro, written = _size(keys, MICRO), _size(keys, STEPS)
    accumulation = _num_steps(keys, written) if _NUM_STEPS in keys.entries else written
    splits = _truth(keys, SPLITS)
    if keys.value(_KWARGS) not in (None, {}):
        keys.refuse(_KWARGS, "Write num_steps in it")
    deepspeed, unread = _deepspeed(keys, launch)
    if deepspeed and deepspeed.lacks_steps and accumulation > 1:
        keys.wrong(
            f"deepspeed: {deepspeed.source} has no {STEPS}, which some versions of accelerate take for 1, and the "
            f"recipe has {accumulation}. Write {STEPS} auto there"
        )
    has_own = any(key.partition(".")[0] == "deepspeed" and its.value for key, its in keys.entries.items())
    is_deepspeed = has_own or (launch is not None and launch.kind == "DEEPSPEED")
    if splits and method == "grpo":
        keys.refuse(SPLITS, "planner does not know which rows GRPO then generates for: write false")
    if has_own and launch and launch.kind == "DEEPSPEED" and launch.beside_deepspeed:
        keys.wrong(
            f"deepspeed: {launch.source} has {launch.beside_deepspeed[0]}, which accelerate refuses beside a DeepSpeed "
            "file. Remove one of them"
        )
    if is_deepspeed and (splits or _NUM_STEPS in keys.entries):
        key = SPLITS if splits else _NUM_STEPS
        keys.refuse(key, f"DeepSpeed's own sizes do not follow it: remove it, and write m and {STEPS}")
    return BatchSizes(
        micro=micro,
        accumulation=accumulation,
        splits=splits,
        accelerator=_without_sizes(keys),
        num_steps=_NUM_STEPS in keys.entries,
        deepspeed=deepspeed,
        unread=unread,
    )


# -- texts


def expand(keys: KeyReader) -> None:
    """Replaces JSON texts, and the names of JSON files, by the keys in them, as transformers does.

    An option with a dot wins over the text, because it comes behind it.
    """
    entries = dict(keys.entries)
    for key in _OBJECTS:
        entry = entries.get(key)
        if entry is None or isinstance(entry.value, Unresolved) or entry.value in (None, {}):
            continue
        if not isinstance(entry.value, str) or not entry.value:
            keys.refuse(key, "Write a JSON object")
            continue
        found = _object_in(keys, key, entry)
        if found is not None:
            tree, where, converts = found
            # An empty object stays: it stands for the file's own section.
            entries[key] = replace(entry, value={})
            entries = {name: its for name, its in entries.items() if name != key or not tree}
            entries = flat(_converted(tree) if converts else tree, where, prefix=f"{key}.") | entries
    keys.entries = entries


def _object_in(keys: KeyReader, key: str, entry: Entry) -> tuple[dict[str, Any], str, bool] | None:
    """The mapping in a text or a file, its place, and whether transformers makes numbers of its texts."""
    try:
        if entry.value.startswith("{"):
            json.loads(entry.value)  # YAML would take more than transformers does
            return mapping_of(entry.value, key), entry.where, True
        file = beside(keys.source, entry.value)
        if key in _FILES and is_file(file):
            return mapping_of(text_of(file), file), file, False
    except (RecipeError, ValueError, RecursionError):
        keys.refuse(key, "Write a JSON object")
        return None
    if key == "accelerator_config":
        keys.refuse(key, "No such file is here: write its JSON object")
    if key == "model_init_kwargs":
        keys.refuse(key, "Write a JSON object")
    return None


def _converted(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with texts as transformers reads them on a command line: `"true"` and `"4"` (_convert_str_dict)."""
    return {key: _converted(its) if isinstance(its, dict) else _converted_value(its) for key, its in tree.items()}


def _converted_value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else value


# -- values


def _refuse_by_table(keys: KeyReader) -> None:
    """Refuses what makes the batch unknown, and names that transformers refuses."""
    for key, entry in keys.entries.items():
        prefix, name = section_of(key)
        effect = effect_of(key, keys.rules) or (None if prefix else effect_of(name.partition(".")[0], keys.rules))
        if effect and effect.planner == "refuses" and not effect.takes(entry.value):
            keys.refuse(key, effect.how)
        name = name.partition(".")[0]
        if prefix in CLOSED and name not in SECTIONS[prefix].names:
            keys.wrong(
                f"{key}: transformers' {CLOSED[prefix]} does not know {cut(name)} and refuses the recipe. Remove it"
            )
    value = keys.value("parallelism_config")
    if any(key.startswith("parallelism_config.") for key in keys.entries) or isinstance(value, dict):
        keys.wrong(
            "parallelism_config: transformers takes it from Python alone, not from a recipe. Remove it, and write its "
            "sizes in the accelerate file"
        )


def _size(keys: KeyReader, key: str) -> int:
    """The whole number at `key`, 1 by default. argparse takes no `8.0`, and the Trainer no null."""
    row = keys.rules.of_key(key)
    default: int = row.default if row else 1
    entry = None if keys.is_wrong(key) else keys.entries.get(key)
    if entry is not None and not entry.is_default and (entry.value is None or isinstance(entry.value, float)):
        found = "null" if entry.value is None else show(entry.value)
        keys.wrong(f"{keys.shown(key)}: found {found}, which the Trainer does not take. Write a whole number")
        return default
    return keys.whole(key, default)


def _num_steps(keys: KeyReader, written: int) -> int:
    """A, where accelerator_config names it."""
    steps = _size(keys, _NUM_STEPS)
    if written > 1:
        keys.wrong(
            f"{_NUM_STEPS}: {steps}, but {STEPS} is {written}, and the Trainer refuses a recipe with both. Remove the "
            "first"
        )
    return steps


def _truth(keys: KeyReader, key: str) -> bool:
    """A flag of accelerator_config. In YAML the text `false` is a text, which Python takes for true."""
    value = keys.value(key, False)
    if not isinstance(value, bool):
        keys.refuse(key, "Write true or false, without quotes")
    return value is True


def _without_sizes(keys: KeyReader) -> dict[str, Any] | None:
    """accelerator_config for a command that writes its own batch sizes. None if the recipe does not have it."""
    prefix = "accelerator_config."
    found = {key.removeprefix(prefix): its.value for key, its in keys.entries.items() if key.startswith(prefix)}
    if not found and "accelerator_config" not in keys.entries:
        return None
    tree: dict[str, Any] = {}
    for name, value in found.items():
        section, _, inner = name.partition(".")
        if not inner and name != "split_batches":
            tree[name] = value
        elif inner and inner != "num_steps":
            written = tree.get(section)
            tree[section] = {**(written if isinstance(written, dict) else {}), inner: value}
    return {"split_batches": False, **tree}


# -- DeepSpeed


def _deepspeed(keys: KeyReader, launch: LaunchSettings | None) -> tuple[DeepSpeedSizes | None, tuple[str, ...]]:
    """DeepSpeed's sizes in the recipe, else in the launcher's file, and the files that are not here."""
    prefix = "deepspeed."
    own = {key.removeprefix(prefix): its for key, its in keys.entries.items() if key.startswith(prefix)}
    unread = launch.unread if launch else ()
    entry = keys.entries.get("deepspeed")
    if entry is not None and entry.value and not isinstance(entry.value, Unresolved):
        return None, (*unread, cut(str(entry.value)))
    if own:
        keys.value("deepspeed")
        inner = KeyReader(source=keys.source, entries=own)
        lacks = not inner.has(STEPS)
        sizes = replace(sizes_in(inner), source=next(iter(own.values())).where, lacks_steps=lacks)
        keys.mistakes += [f"deepspeed.{text}" for text in inner.mistakes]
        for key in own:
            keys.value(f"{prefix}{key}")
        return sizes, unread
    return (launch.deepspeed if launch and launch.kind == "DEEPSPEED" else None), unread
