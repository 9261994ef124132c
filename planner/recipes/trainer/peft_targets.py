"""The layers to which peft 0.21 adds adapters by default, by model family."""

import re
from pathlib import Path

from planner.base.disk import is_file
from planner.errors import RecipeError
from planner.recipes.config_reader import mapping_of, text_of

_QV = ("q_proj", "v_proj")
# From peft's utils/constants.py, for families of causal language models: model_type -> ends of layer names.
_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "llama4", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), _QV),
    **dict.fromkeys(("stablelm", "opt", "gptj", "gpt_neo"), _QV),
    **dict.fromkeys(("gpt_neox", "falcon", "bloom", "chatglm"), ("query_key_value",)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    "codegen": ("qkv_proj",),
    "mpt": ("Wqkv",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
}
# Model names on the hub -> model_type. The first match counts. Mixtures of experts and vision models have other types.
_NO_FAMILY = re.compile(r"vision|-vl|moe|-a\d+b|omni|nemo-?tron")
_BY_NAME = (
    (re.compile(r"mixtral"), "mixtral"),
    (re.compile(r"mistral"), "mistral"),
    (re.compile(r"qwen-?3"), "qwen3"),
    (re.compile(r"qwen-?(2|1\.5)"), "qwen2"),
    (re.compile(r"llama"), "llama"),
    (re.compile(r"gemma-?2-"), "gemma2"),
    (re.compile(r"gemma-(2|7)b"), "gemma"),
    (re.compile(r"pythia|gpt-neox"), "gpt_neox"),
    (re.compile(r"gpt-j"), "gptj"),
    (re.compile(r"gpt-neo-"), "gpt_neo"),
    (re.compile(r"gpt2"), "gpt2"),
    (re.compile(r"falcon-(7|40)b"), "falcon"),
    (re.compile(r"bloom"), "bloom"),
    (re.compile(r"(^|-)opt-"), "opt"),
    (re.compile(r"phi-(1|1_5|2)$"), "phi"),
    (re.compile(r"stablelm-2|stablelm-3b"), "stablelm"),
)


def default_targets(model: str) -> tuple[tuple[str, ...], str]:
    """The layers' names, and how the family was found: by config.json in a folder, else by the model's name.

    There are no names if peft has no default or the family is unknown.
    """
    if (told := _type_in(model)) is not None:
        return _TARGETS.get(told, ()), f"peft's default for {told} (family by config.json)"
    name = model.rstrip("/").rpartition("/")[2].lower()
    if _NO_FAMILY.search(name):
        return (), ""
    family = next((family for pattern, family in _BY_NAME if pattern.search(name)), "")
    return _TARGETS.get(family, ()), f"peft's default for {family} (family by the model's name)"


def _type_in(model: str) -> str | None:
    """`model_type` in the config.json of a local folder, None if there is no such folder or value."""
    try:
        file = Path(model) / "config.json"
        if not is_file(file):
            return None
        found = mapping_of(text_of(file), str(file)).get("model_type")
    except (RecipeError, OSError, ValueError):
        return None
    return found if isinstance(found, str) else None
