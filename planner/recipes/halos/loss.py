"""Derives the objective from the keys of a HALOs recipe, or lists the coefficients for the user's own loop."""

from collections.abc import Callable
from typing import Any

from planner.recipes.entries import KeyReader
from planner.recipes.halos.batching import HalosFacts
from planner.recipes.hydra_recipes.forks import text_or_value
from planner.recipes.recipe import Draft
from planner.recipes.scalars import number

# Keys outside `loss` that change the loss.
OF_HUMANLINE = ("humanline", "humanline_iters", "humanline_alpha", "log_epsilon_P", "log_epsilon_R")
_NO_COEFFICIENTS = ("loss.trainer", "loss.dataloader", "loss.name", "loss.use_reference_model")


def note_loss(draft: Draft, keys: KeyReader) -> None:
    """Puts the coefficients of the recipe's loss into the draft, for the user's own training loop."""
    asked = [name for name in keys.entries if name.startswith(("loss.", "model.reward_model.", "model.v_head_"))]
    asked += OF_HUMANLINE if keys.value("humanline") is True else ()
    known = {name: text_or_value(keys, name) for name in asked if keys.has(name) and name not in _NO_COEFFICIENTS}
    draft.set("objective", {name.removeprefix("loss."): value for name, value in known.items()})
    shipped = [name.removeprefix("loss.") for name in known if keys.entries[name].is_default]
    if shipped:
        draft.ask(f"the loss: {', '.join(shipped)} are HALOs' defaults")


def set_objective(draft: Draft, keys: KeyReader, facts: HalosFacts) -> None:
    """Sets the objective that computes the method's loss."""
    objective, text = _OBJECTIVES[facts.method](keys, facts)
    if keys.value("cache_reference_logprobs") is True and facts.method in {"dpo", "cdpo", "ipo"}:
        objective["reference"] = "cached"
        draft.told.add("cache_reference_logprobs")
        text = f"{text}, and cache_reference_logprobs is true" if text else "cache_reference_logprobs is true"
    shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
    draft.derive("objective", objective, f"objective {shown}" + (f": {text}" if text else ""))


# The section `objective`, and a text on what differs.
_Objective = tuple[dict[str, Any], str]


def _sft(_keys: KeyReader, facts: HalosFacts) -> _Objective:
    if facts.is_legacy:
        text = "the branch legacy sums over an example's tokens and averages over examples"
        return {"kind": "sft", "mean_over": "samples"}, text
    return {"kind": "sft"}, "a mean over all tokens of the global batch. HALOs takes it over those of a micro-batch"


def _dpo(keys: KeyReader, _facts: HalosFacts) -> _Objective:
    return {"kind": "dpo", "beta": keys.read("loss.beta")}, ""


def _cdpo(keys: KeyReader, facts: HalosFacts) -> _Objective:
    dpo, text = _dpo(keys, facts)
    return {**dpo, "label_smoothing": keys.number("loss.epsilon")}, text


def _ipo(keys: KeyReader, _facts: HalosFacts) -> _Objective:
    return {"kind": "ipo", "beta": keys.number("loss.tau"), "log_probs": "mean"}, "beta is loss.tau"


def _simpo(keys: KeyReader, _facts: HalosFacts) -> _Objective:
    beta, ratio, text = keys.read("loss.beta") or 1.0, keys.read("loss.gamma_beta_ratio"), ""
    shipped = keys.entries.get("loss.gamma_beta_ratio")
    if keys.has("loss.gamma") and (shipped is None or shipped.is_default):
        ratio, text = keys.number("loss.gamma") / beta, "gamma_beta_ratio = loss.gamma / loss.beta"
    return {"kind": "simpo", "beta": beta, "gamma_beta_ratio": ratio}, text


def _kto(keys: KeyReader, _facts: HalosFacts) -> _Objective:
    objective = {
        "kind": "kto",
        "beta": keys.read("loss.beta"),
        "desirable_weight": keys.read("loss.desirable_weight"),
        "undesirable_weight": keys.read("loss.undesirable_weight"),
    }
    return objective, "planner's KL baseline is over the whole global batch, HALOs' over a micro-batch of all GPUs"


# HALOs' method -> the function that reads its objective.
_OBJECTIVES: dict[str, Callable[[KeyReader, HalosFacts], _Objective]] = {
    "sft": _sft,
    "dpo": _dpo,
    "cdpo": _cdpo,
    "ipo": _ipo,
    "simpo": _simpo,
    "kto": _kto,
}
