"""Drafts a job's model section from the keys of a TRL recipe."""

from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.trainer.job import set_lora


def set_model(draft: Draft, keys: KeyReader) -> None:
    """Sets `model`, its context and its adapters."""
    draft.set("model.kind", "hf")
    carried(draft, keys, "model_name_or_path")
    carried_if_set(draft, keys, "model_revision")
    key = "max_seq_length" if keys.has("max_seq_length") else "max_length"
    if keys.has("max_seq_length") and keys.has("max_length"):
        keys.wrong(
            "max_seq_length and max_length: both set the length of a sample. TRL up to 0.19 takes the first, and newer "
            "ones refuse it: write its number as max_length"
        )
    if key in keys.entries and not keys.has(key):
        keys.lacks(
            f"{key}: found null, which means no limit. Write the tokens of the longest sample, such as {key}=4096"
        )
    carried(draft, keys, key)
    for name in ("chat_template", "chat_template_path"):
        if keys.has(name):
            keys.value(name)
            draft.drop(name, "see to do")
            draft.ask(
                f"model.chat_template: save the recipe's {name} as a Jinja file, and write its path", of_model=True
            )
    if keys.flag("use_peft"):
        set_lora(draft, keys)
    elif keys.value("load_in_4bit") is True:
        keys.refuse_in_job("load_in_4bit", "without use_peft there are no adapters, and 4-bit weights are not trained")
