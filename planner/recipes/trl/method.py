"""Finds the method of a TRL recipe: by its script, its keys, its folder or `--method`."""

from collections.abc import Mapping
from pathlib import PurePath

from planner.recipes.entries import Entry
from planner.recipes.trl import handbook_v03
from planner.recipes.trl.keys import METHODS

# Keys that name a method. A method's first key in this order counts.
_TELLS = {
    "num_generations": "grpo",
    "desirable_weight": "kto",
    "undesirable_weight": "kto",
    "precompute_ref_log_probs": "dpo",
    "packing": "sft",
    "max_seq_length": "sft",
    "assistant_only_loss": "sft",
    "completion_only_loss": "sft",
    "dataset_text_field": "sft",
}
# Keys of the other methods that SFT's script refuses. A recipe with one of them is no SFT, whatever else it has.
_NOT_OF_SFT = (
    "beta", "max_prompt_length", "label_smoothing", "loss_weights", "reference_free", "rpo_alpha", "ld_alpha",
    "f_divergence_type", "sync_ref_model", "cpo_alpha", "simpo_gamma", "max_completion_length", "reward_funcs",
    "reward_weights",
)  # fmt: skip
# The values of loss_type by the method that has them (TRL 0.12 to 1.16).
_LOSSES = {
    "sft": "nll chunked_nll dft",
    "kto": "kto apo_zero_unpaired",
    "grpo": "grpo dr_grpo dapo bnpo cispo sapo luspo vespo",
    "dpo": "sigmoid hinge ipo kto_pair bco_pair exo_pair nca_pair robust sppo_hard aot aot_pair aot_unpaired apo_zero "
    "apo_down discopop sft sigmoid_norm",
}
_METHOD_OF_LOSS = {loss: method for method, losses in _LOSSES.items() for loss in losses.split()}
LOSSES = frozenset({*_METHOD_OF_LOSS, "simpo", "alphapo"})
"""the values of loss_type in TRL's scripts, also of those that planner does not read"""


def is_pretraining(script: str, source: str, asked: str | None) -> bool:
    """Whether the script or the recipe's folder is that of continued pretraining, and nothing names a method."""
    stem = PurePath(script).stem.removeprefix("run_")
    is_named = bool(asked) or stem in METHODS
    return not is_named and handbook_v03.CPT in {stem, PurePath(source).parent.name}


def method_of(entries: Mapping[str, Entry], script: str, source: str, asked: str | None) -> tuple[str, str]:
    """The method, and what determines it: `--method`, the script, a key, or the folder.

    Both are empty if nothing names the method, or if the keys are of SFT and of another method.
    """
    if asked:
        return asked, "--method"
    stem = PurePath(script).stem.removeprefix("run_")
    if stem in METHODS:
        return stem, script
    if is_pretraining(script, source, asked):
        return "sft", f"{handbook_v03.CPT}, continued pretraining"
    of_loss = _METHOD_OF_LOSS.get(_loss_type(entries), "")
    if key := next((each for each in _TELLS if each in entries), ""):
        method = _TELLS[key]
        is_mixed = of_loss not in {"", "sft"} or any(each in entries for each in _NOT_OF_SFT)
        return ("", "") if method == "sft" and is_mixed else (method, key)
    if of_loss:
        return of_loss, "loss_type"
    # In the alignment-handbook a recipe is recipes/MODEL/METHOD/config_NAME.yaml.
    folder = PurePath(source).parent.name
    return (folder, f"the folder {folder}/") if folder in METHODS else handbook_v03.method_of(entries)


def _loss_type(entries: Mapping[str, Entry]) -> str:
    """The text of `loss_type`, empty if there is none. Several losses are DPO's: they count as its default."""
    loss = entries.get("loss_type")
    if loss is None:
        return ""
    return "sigmoid" if isinstance(loss.value, list) else str(loss.value)
