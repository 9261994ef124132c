"""What a TRL recipe does against padding: `padding_free`, an order by length, packing, or nothing."""

from math import prod

from planner.plan.factory import MAX_TOKENS
from planner.recipes.drafting import note_padding
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.rule import NO_SETTING
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.facts import groups_by_length

_PADS = "TRL pads each micro-batch to its longest row, and so does planner"
_GROUPED = (
    "planner does not order rows by length. batch.max_tokens saves the same padding and leaves each step its samples"
)
_BALANCED = "batch.max_tokens balances micro-batches by their tokens, without padding"
_GROUP, _STRATEGY, _COLUMN = "group_by_length", "train_sampling_strategy", "length_column_name"


def cuts_padding_free(keys: KeyReader) -> bool:
    """Whether TRL is to pad no rows, and also to cut them. No length is a limit of 1024, null is none."""
    return keys.flag("padding_free") and ("max_length" not in keys.entries or keys.has("max_length"))


def set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    """Sets `batch.max_tokens` if TRL pads nothing, else notes that it pads."""
    _set_max_tokens(draft, keys, facts.method)
    note_padding(draft, _padding_of(keys))


def _padding_of(keys: KeyReader) -> str:
    """How TRL pads, as a sentence. Empty if the recipe has something against padding."""
    has_order = groups_by_length(keys) or keys.value(_STRATEGY) == "batch_rebalance"
    return "" if keys.flag("packing") or keys.flag("padding_free") or has_order else _PADS


def _set_max_tokens(draft: Draft, keys: KeyReader, method: str) -> None:
    """Turns padding off if `padding_free` does, by a cap that no micro-batch exceeds."""
    micro, context = draft.job["batch"].get("max_micro"), draft.job["model"]["context"]
    if not keys.flag("padding_free") or keys.flag("packing") or micro is None:
        return
    factors = (micro, 2, context) if method == "dpo" else (micro, context)
    most = min(prod(factors), MAX_TOKENS)
    shown = f"{most} ({' x '.join(map(str, factors))}: no micro-batch has more, so it only turns padding off)"
    also = ". TRL 1.16 pads pairs all the same" if method == "dpo" else ""
    draft.carry("padding_free", "batch.max_tokens", most, f"{shown}{also}")


def padding_reasons(keys: KeyReader, *, is_own: bool) -> dict[str, str]:
    """Why keys that concern padding are dropped. `is_own`: whether the user's own loop computes the loss."""
    found = dict.fromkeys((_GROUP, _STRATEGY, _COLUMN), NO_SETTING)
    if is_own:
        return {**found, "padding_free": "your loop makes its micro-batches"}
    if keys.flag("packing"):
        return {**found, "padding_free": "data.packing does that"}
    if groups_by_length(keys):
        found = dict.fromkeys(found, _GROUPED)
    elif keys.value(_STRATEGY) == "batch_rebalance":
        found |= dict.fromkeys((_STRATEGY, _COLUMN), _BALANCED)
    return {**found, "padding_free": "batch.max_tokens turns padding off"}
