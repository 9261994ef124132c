"""Derives the objective from the keys of a TRL recipe, and finds keys that change its loss."""

from typing import Any

from planner.recipes.drafting import DATA_OF
from planner.recipes.engine import altering, note_settings
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.scalars import number
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.keys import TRAINING_ARGUMENTS

# Settings of a single loss.
_SETTINGS = {"kto": ("desirable_weight", "undesirable_weight")}
# Losses that TRL computes in another way, and how.
_DIFFERENT = {"kto": "planner's KL baseline is over the whole global batch, TRL's over a micro-batch of all GPUs"}


def changing(keys: KeyReader, loss: str) -> list[str]:
    """The recipe's keys that make its loss another one than planner's objective `loss`."""
    if loss == "sft":
        return altering(keys, TRAINING_ARGUMENTS)
    alone = loss == "ipo" and keys.has("reference_free") and keys.value("reference_free") is not False
    return [*altering(keys), *(["reference_free"] if alone else [])]


def note_loss(draft: Draft, keys: KeyReader) -> None:
    """Puts the settings of the recipe's loss into the draft, for the user's own training loop."""
    note_settings(draft, keys)
    if "beta" not in draft.job["objective"]:
        draft.ask("the loss: settings that the recipe does not have, such as beta, are TRL's defaults")


def set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    """Sets the objective that computes the method's loss."""
    if facts.loss == "sft":
        draft.derive(
            "objective", {"kind": "sft"}, "objective sft: the mean over all tokens of the global batch, as in TRL"
        )
        return
    beta = keys.read("beta")
    objective: dict[str, Any] = {"kind": facts.loss, "beta": beta}
    if facts.loss == "dpo" and (smoothing := keys.read("label_smoothing")):
        objective["label_smoothing"] = smoothing
    if facts.loss == "dpo" and keys.value("reference_free") is True:
        objective["reference"] = "none"
    elif facts.loss in {"dpo", "ipo"} and keys.value("precompute_ref_log_probs") is True:
        objective["reference"] = "cached"
    objective |= {name: keys.read(name) for name in _SETTINGS.get(facts.loss, ())}
    if facts.loss in DATA_OF:
        shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
        different = f": {_DIFFERENT[facts.loss]}" if facts.loss in _DIFFERENT else ""
        draft.derive("objective", objective, f"objective {shown}{different}")
