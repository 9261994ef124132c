"""Finds the keys that no script of TRL takes: a typing mistake, or a recipe of another system.

Nobody is told to remove a key that may decide the loss or the batch. A recipe without it would train something else.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from planner.files.messages import cut
from planner.recipes import unsupported
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import KeyReader
from planner.recipes.trainer.launch_keys import ACCELERATE_LAUNCH
from planner.recipes.trl import handbook_v03
from planner.recipes.trl.keys import ENVIRONMENT, KNOWN, TRUE_BY_DEFAULT

# Fewer unknown keys may be typing mistakes.
_FEWEST_OF_ANOTHER = 3
_MOST_MISSPELT = 8
_MOST_SHOWN = 8
# lenght and length are alike by 0.83, lora and rslora by 0.8.
_LEAST_ALIKE = 0.82
# Keys with these beginnings say where results go. The recipe trains the same without them.
_HARMLESS = ("hub_", "logging_", "report_", "save_", "wandb_", "trackio_", "mlflow_", "swanlab_")
# Options of accelerate, torchrun and deepspeed. The command `trl` takes those of accelerate also from its file.
_LAUNCHERS = ACCELERATE_LAUNCH.names
_MOST_LETTERS = 120
_OF_LAUNCHER = (
    "found an option of a launcher, which planner does not read here. Take it out of there and write it before the "
    "script: accelerate launch --num_processes 8 scripts/METHOD.py"
)
_UNKNOWN = "TRL does not know this key and refuses the recipe"


def another_system(names: Iterable[str]) -> str:
    """What a recipe with these keys is, if it is none of TRL's. Empty if it may be one.

    `names` are dotted keys. An unsupported system is named if the recipe has its marks.
    """
    names = tuple(names)
    if likeness := unsupported.known_by("", names):
        return likeness.text
    unknown = [key for key in _unknown(names) if not _is_of_launcher(key)]
    if len(unknown) < _FEWEST_OF_ANOTHER or (len(unknown) <= _MOST_MISSPELT and all(map(_near, unknown))):
        return ""
    of = len(dict.fromkeys(_first(name) for name in names))
    more = ", ..." if len(unknown) > _MOST_SHOWN else ""
    return (
        f"{len(unknown)} of its {of} keys are none of TRL's ({cut(', '.join(unknown[:_MOST_SHOWN]), 200)}{more}), so "
        "another script trains it"
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
    texts = [f"{cut(key)}: {_what_to_do(key)}" for key in unknown if not _is_of_launcher(key)]
    if launchers := [key for key in unknown if _is_of_launcher(key)]:
        texts.append(f"{cut(', '.join(launchers), _MOST_LETTERS)}: {_OF_LAUNCHER}")
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
    """The key of TRL's of which this one is a misspelling or an abbreviation, empty if there is none.

    Every word must resemble its counterpart: `dpo_alpha` is no misspelling of `rpo_alpha`, `ref_model_name_or_path`
    none of `model_name_or_path`. Whoever took such a hint would train something else.
    """
    joined = key.replace("_", "").lower()
    if same := [known for known in KNOWN if known.replace("_", "") == joined]:
        return same[0]
    if "_" in key and len(longer := [known for known in KNOWN if known.startswith(f"{key}_")]) == 1:
        return longer[0]
    alike = [known for known in KNOWN if _is_misspelt(key, known)]
    return next(iter(get_close_matches(key, alike, n=1, cutoff=0)), "")


def _is_misspelt(key: str, known: str) -> bool:
    words, theirs = key.split("_"), known.split("_")
    # beta2 is a second beta, no misspelling of the first.
    is_same_number = re.findall(r"\d", key) == re.findall(r"\d", known)
    return (
        is_same_number
        and len(words) == len(theirs)
        and all(
            SequenceMatcher(None, word, its).ratio() >= _LEAST_ALIKE for word, its in zip(words, theirs, strict=True)
        )
    )


def _may_decide(key: str) -> bool:
    """Whether an unknown key may decide the loss or the batch: it is no misspelling, not harmless, not accelerate's."""
    return not (_near(key) or key.startswith(_HARMLESS) or _is_of_launcher(key))


def _is_of_launcher(key: str) -> bool:
    return key in _LAUNCHERS or key == "accelerate_config"


def _what_to_do(key: str) -> str:
    if near := _near(key):
        return f"{_UNKNOWN}. Did you mean {near}?"
    if _may_decide(key):
        return f"{_UNKNOWN}. The script that takes it may train another loss or batch, and is none that planner reads"
    return f"{_UNKNOWN}. It only says where results go: remove it"


def _why_not(positive: str) -> str:
    """Why TRL refuses a key with `no_` before it."""
    if positive in TRUE_BY_DEFAULT:
        return f"--no_{positive} is an option of the command line and takes no value"
    return "transformers has --no_NAME only for options that are true by default"
