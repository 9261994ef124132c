"""Sets the objective of a system on transformers' Trainer, of keys with TRL's names."""

from collections.abc import Mapping
from typing import Any

from planner.files.messages import cut
from planner.recipes.engine import altering
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.scalars import number
from planner.recipes.trainer.batching import TrainerFacts

LOSSES = ("sft", "dpo", "ipo", "simpo", "kto")
"""losses that an objective of planner's computes as systems on the Trainer do"""


def own_because(keys: KeyReader, loss: str, others: Mapping[str, str], *more: str, shown: str = "") -> str:
    """Why no objective of planner's computes a recipe's loss, empty if one does.

    Args:
        keys: the recipe's keys, of which some may alter any loss (`KeyRule.alters`).
        loss: the loss.
        others: why planner has no objective for a loss, beyond those that it does not know.
        more: what else alters the loss.
        shown: the name of an unknown loss, such as `pref_loss hinge`.
    """
    if loss in others:
        return others[loss]
    if loss not in LOSSES:
        return f"planner has no objective for {cut(shown or loss)}"
    named = [*altering(keys), *more]
    return f"planner has no objective for {loss} with {', '.join(named)}" if named else ""


def set_preferences(draft: Draft, keys: KeyReader, facts: TrainerFacts, title: str, *told: str) -> None:
    """Sets `objective` for sft, dpo, ipo, simpo and kto. The note on it also tells of the keys `told`."""
    if facts.loss == "sft":
        text = "objective sft: the mean over all tokens of the global batch"
        draft.derive("objective", {"kind": "sft"}, text if facts.varies else f"{text}, as in {title}")
        return
    objective: dict[str, Any] = {"kind": facts.loss, "beta": keys.read("beta")}
    if facts.loss == "dpo" and (smoothing := keys.read("label_smoothing")):
        objective["label_smoothing"] = smoothing
    if facts.loss == "ipo":
        objective["log_probs"] = "mean"
    if facts.loss == "simpo":
        objective["gamma_beta_ratio"] = keys.read("simpo_gamma") / (objective["beta"] or 1.0)
    if facts.loss == "kto":
        objective |= {name: keys.read(name) for name in ("desirable_weight", "undesirable_weight")}
    if keys.has("ref_model"):
        objective["reference_model"] = keys.text("ref_model")
    shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
    draft.derive("objective", objective, f"objective {shown}", "simpo_gamma", "ref_model", *told)
