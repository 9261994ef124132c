"""Derives the objective from the keys of a TRL recipe, and finds keys that change its loss."""

from typing import Any

from planner.recipes.drafting import DATA_OF
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.scalars import number
from planner.recipes.trainer.batching import TrainerFacts

# Keys that change the loss of any method, and the values with which they do not.
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


# Settings of a single loss.
_SETTINGS = {"kto": ("desirable_weight", "undesirable_weight")}
# Losses that TRL computes in another way, and how.
_DIFFERENT = {"kto": "planner's KL baseline is over the whole global batch, TRL's over a micro-batch of all GPUs"}


def changing(loss: str) -> dict[str, tuple[Any, ...]]:
    """The keys that change `loss`, each with the values with which it does not."""
    if loss == "sft":
        return _CHANGING
    alone = {"reference_free": (False,)} if loss == "ipo" else {}
    return {**_CHANGING, **_CHANGING_PREFERENCES, **alone}


def note_loss(draft: Draft, keys: KeyReader) -> None:
    """Puts the settings of the recipe's loss into the draft, for the user's own training loop."""
    known = [*_OF_LOSSES, *_CHANGING, *_CHANGING_PREFERENCES]
    draft.set("objective", {key: keys.value(key) for key in known if keys.has(key)})
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
