"""Makes the recipe of TRL's and the alignment-handbook's keys, of flat YAML or of options of their scripts."""

from dataclasses import replace

from planner.recipes.drafting import DATA_OF, RecipeOptions
from planner.recipes.engine import refuse_values, rename
from planner.recipes.entries import KeyReader, near
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import scalar
from planner.recipes.trainer.accelerate import LaunchSettings
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import Dialect, Trained
from planner.recipes.trainer.keys import NOT_NULL
from planner.recipes.trainer.recipe import read_truths, recipe_of
from planner.recipes.trainer.sizes import expand
from planner.recipes.trl import handbook_v03
from planner.recipes.trl.data import set_rows
from planner.recipes.trl.keys import METHODS
from planner.recipes.trl.loss import changing, note_loss, set_objective
from planner.recipes.trl.method import LOSSES, is_pretraining, method_of
from planner.recipes.trl.model import set_model
from planner.recipes.trl.padding import cuts_padding_free, padding_reasons, set_padding
from planner.recipes.trl.unknown import refuse_unknown

# The values of loss_type that mean the method's own loss.
_PLAIN_LOSSES = {
    "sft": ("", "nll", "chunked_nll"),
    "dpo": ("", "sigmoid"),
    "kto": ("", "kto"),
}
# Methods whose loss differs from planner's objective of the same name, and the difference.
_ANOTHER_LOSS = {"orpo": "planner's orpo leaves the prompt out of its cross-entropy, TRL counts it"}


def _own_facts(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:
    cuts = facts.unit == "example" and cuts_padding_free(keys)
    return replace(facts, cuts_padding_free=cuts, handbook_keys=handbook_v03.keys_of(keys.entries))


DIALECT = Dialect(
    title="TRL",
    set_model=set_model,
    set_rows=set_rows,
    note_loss=note_loss,
    set_objective=set_objective,
    set_padding=set_padding,
    facts=_own_facts,
    reasons=padding_reasons,
)


def recipe_from(keys: KeyReader, options: RecipeOptions, *, script: str, launch: LaunchSettings | None) -> Recipe:
    """The recipe with the given keys. Notes mistakes in `keys`.

    Args:
        keys: the recipe's keys.
        options: the command line's options.
        script: the script that a command starts, empty for a file.
        launch: the launcher's settings, None if unknown.
    """
    refuse_unknown(keys)
    handbook_v03.rename(keys)
    rename(keys)
    expand(keys)
    read_truths(keys)
    _read_numbers(keys)
    refuse_values(keys, DIALECT.title)
    keys.refuse_null(DIALECT.title, *NOT_NULL)
    method, told_by = method_of(dict(keys.entries), script, keys.source, options.method)
    if method not in METHODS:
        found = f"found {method[:40]}" if method else "the recipe does not name it"
        keys.wrong(f"method: {found}. Write --method {', '.join(METHODS[:-1])} or {METHODS[-1]}")
        method = "sft"
    keys.method = method
    handbook_v03.add_defaults(keys, method)
    is_older = handbook_v03.is_older(keys.entries)
    if is_pretraining(script, keys.source, options.method):
        keys.lacks(
            f"{told_by}: convert makes no job for rows of plain text. Write one with data.kind jsonl, objective lm "
            "(planner init) and the global batch that planner check shows"
        )
    _refuse_loss(keys)
    loss = _loss_of(keys, method)
    unit = "pair" if method in {"dpo", "orpo"} else "example" if method == "sft" else "completion"
    unit = "packed row" if keys.flag("packing") else unit
    trained = Trained(method=method, told_by=told_by, loss=loss, unit=unit, why_own=_own_because(keys, method, loss))
    return replace(
        recipe_of(keys, options, trained, DIALECT, launch),
        script=script or (f"run_{method}.py" if is_older else ""),
        config_first=is_older and not script,
    )


def _read_numbers(keys: KeyReader) -> None:
    """Replaces texts such as `"4"` of a file by numbers. TRL gives argparse the file's values as defaults."""
    made = {}
    for name, entry in keys.entries.items():
        row = keys.rules.of_key(name)
        if row and row.value in {"whole", "number", "real", "norm"} and isinstance(entry.value, str):
            made[name] = replace(entry, value=scalar(entry.value.strip()))
    keys.entries = {**keys.entries, **made}


def _refuse_loss(keys: KeyReader) -> None:
    """Notes a mistyped loss. Any other one that planner does not know may be of a newer version, or of a fork."""
    loss = keys.peek("loss_type", "")
    for each in loss if isinstance(loss, list) else [loss]:
        if not isinstance(each, str):
            keys.refuse("loss_type", "Write the name of a loss")
        elif each not in LOSSES and (meant := near(each, LOSSES)):
            keys.refuse("loss_type", f"Did you mean {meant}?")


def _loss_of(keys: KeyReader, method: str) -> str:
    """The method if it has its own loss, else the loss_type."""
    loss = keys.value("loss_type")
    if isinstance(loss, list) and len(loss) == 1:
        loss = loss[0]
    named = "a list of losses" if isinstance(loss, list | dict) else str(loss or "")
    if method == "dpo" and named == "ipo":
        return "ipo"
    if named in _PLAIN_LOSSES.get(method, ("", named)):
        return method
    # Otherwise a loss_type of this method could be taken for a planner objective of the same name.
    return f"loss_type {named}" if named in DATA_OF else named


def _own_because(keys: KeyReader, method: str, loss: str) -> str:
    """Why no objective of planner's computes this loss, empty if one does."""
    if loss in _ANOTHER_LOSS:
        return _ANOTHER_LOSS[loss]
    if loss not in DATA_OF:
        named = loss if loss.startswith("loss_type ") else f"loss_type {loss}"
        return f"planner has no objective for {method}" + ("" if loss == method else f" with {named}")
    changed = changing(keys, loss)
    return f"planner has no objective for {loss} with {', '.join(changed)}" if changed else ""
