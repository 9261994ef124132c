"""Finds the keys that no script of TRL takes: a typing mistake, or a recipe of another system.

Nobody is told to remove a key that may decide the loss or the batch. A recipe without it would train something else.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from planner.files.messages import cut
from planner.recipes import handbook_v03, unsupported
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import KeyReader
from planner.recipes.trl_keys import KNOWN, TRUE_BY_DEFAULT

ENVIRONMENT = "env"
"""the section of TRL's configuration files (TrlParser) with environment variables"""
# Fewer unknown keys may be typing mistakes.
_FEWEST_OF_ANOTHER = 3
_MOST_SHOWN = 8
# Keys with these beginnings say where results go. The recipe trains the same without them.
_HARMLESS = ("hub_", "logging_", "report_", "save_", "wandb_", "trackio_", "mlflow_", "swanlab_")
_UNKNOWN = "TRL does not know this key and refuses the recipe"


def another_system(names: Iterable[str]) -> str:
    """What a recipe with these keys is, if it is none of TRL's. Empty if it may be one.

    `names` are dotted keys. An unsupported system is named if the recipe has its marks.
    """
    names = tuple(names)
    if likeness := unsupported.known_by("", names):
        return likeness.text
    unknown = _unknown(names)
    if len(unknown) < _FEWEST_OF_ANOTHER or all(_near(key) for key in unknown):
        return ""
    of = len(dict.fromkeys(_first(name) for name in names))
    more = ", ..." if len(unknown) > _MOST_SHOWN else ""
    return (
        f"{len(unknown)} of its {of} keys are none of TRL's ({cut(', '.join(unknown[:_MOST_SHOWN]), 200)}{more}), so "
        f"another script trains it. planner reads {unsupported.READ}"
    )


def refuse_unknown(keys: KeyReader) -> None:
    """Notes keys that TRL does not know as mistakes.

    Raises:
        RecipeError: this is a recipe of another system, or one of the keys may decide what is trained. No other
            mistake matters then.
    """
    if another := another_system(keys.entries):
        raise recipe_error(keys.source, another)
    unknown = _unknown(keys.entries)
    texts = [f"{cut(key)}: {_UNKNOWN}. {_what_to_do(key)}" for key in unknown]
    if any(_may_decide(key) for key in unknown):
        raise recipe_error(keys.source, *texts)
    keys.mistakes += texts
    for key in _negated(keys.entries):
        positive = key.removeprefix("no_")
        keys.wrong(f"{key}: {_why_not(positive)}. Write --{positive} false")


def _unknown(names: Iterable[str]) -> list[str]:
    """The keys, without their sections, that neither TRL nor the handbook's own scripts take."""
    names = tuple(names)
    of_older = {"hub_model_revision"} if handbook_v03.is_older(names) else set()
    known = KNOWN | of_older | (set() if ENVIRONMENT in names else {ENVIRONMENT})
    first = dict.fromkeys(_first(name) for name in names)
    return [key for key in first if key not in known and not _is_negated(key)]


def _negated(names: Iterable[str]) -> list[str]:
    return [key for key in dict.fromkeys(_first(name) for name in names) if _is_negated(key)]


def _is_negated(key: str) -> bool:
    """Whether this is `no_NAME` of a key that TRL knows."""
    return key not in KNOWN and key.startswith("no_") and key.removeprefix("no_") in KNOWN


def _first(name: str) -> str:
    return name.partition(".")[0]


def _near(key: str) -> str:
    """The key of TRL's that resembles this one, empty if none does."""
    return next(iter(get_close_matches(key, KNOWN, n=1, cutoff=0.75)), "")


def _may_decide(key: str) -> bool:
    """Whether an unknown key may decide the loss or the batch: it is no typing mistake and not harmless."""
    return not _near(key) and not key.startswith(_HARMLESS)


def _what_to_do(key: str) -> str:
    if near := _near(key):
        return f"Did you mean {near}?"
    if _may_decide(key):
        return "The script that takes it may train another loss or batch, and is none that planner reads"
    return "It only says where results go: remove it"


def _why_not(positive: str) -> str:
    """Why TRL refuses a key with `no_` before it."""
    if positive in TRUE_BY_DEFAULT:
        return f"--no_{positive} is an option of the command line and takes no value"
    return "transformers has --no_NAME only for options that are true by default"
