"""Recognises the DPO repository and HALOs by several of their keys, because many systems have a `train.py`."""

from collections.abc import Iterable, Mapping

from planner.recipes.dpo import keys as dpo
from planner.recipes.entries import Entry
from planner.recipes.halos import keys as halos
from planner.recipes.rule import Rules

# A single key may belong to any system.
_FEWEST_MARKS = 2
_HALOS_LOSSES = (*halos.LOSSES, *halos.LOSSES_OF_OTHERS)


def is_dpo_repository(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether several keys of the recipe itself are typical of the DPO repository. `choices` are Hydra's groups."""
    marks = [
        *_marks(dpo.RULES, entries),
        *_marked(choices, "loss", dpo.LOSSES),
        *_marked(choices, "model", (*dpo.MODELS, "blank_model")),
        *(key for key in _written(entries) if key == "trainer" and entries[key].value in dpo.TRAINERS),
    ]
    return _is_enough(marks, entries, choices, dpo.CONFIG)


def is_halos(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether several keys of the recipe itself are typical of HALOs. `choices` are Hydra's groups."""
    marks = [
        *_marks(halos.OF_LEGACY, entries),
        *_marked(choices, "loss", _HALOS_LOSSES),
        *_marked(choices, "model", halos.MODELS),
    ]
    return _is_enough(marks, entries, choices, halos.CONFIG)


def is_legacy_halos(entries: Mapping[str, Entry], choices: Mapping[str, str]) -> bool:
    """Whether the recipe is of HALOs' branch legacy, whose script is called train.py."""
    loss = choices.get("loss", "")
    return not {"mode", "use_fsdp"}.isdisjoint(entries) or (loss in _HALOS_LOSSES and loss not in dpo.LOSSES)


def _written(entries: Mapping[str, Entry]) -> list[str]:
    return [key for key, its in entries.items() if not its.is_default]


def _marks(rules: Rules, entries: Mapping[str, Entry]) -> list[str]:
    """The keys in the recipe itself that hardly another system has."""
    return [key for key in _written(entries) if (row := rules.exact(key)) and row.mark]


def _marked(choices: Mapping[str, str], group: str, names: Iterable[str]) -> list[str]:
    """`[group]` if the choice for it begins with one of the names, else an empty list."""
    return [group] if choices.get(group, "").startswith(tuple(names)) else []


def _is_enough(marks: list[str], entries: Mapping[str, Entry], choices: Mapping[str, str], rules: Rules) -> bool:
    """Whether there are two marks, or one model, loss or trainer of the system and no key of another system."""
    foreign = [key for key in _written(entries) if key not in rules.names]
    by_value = [mark for mark in marks if mark in choices or mark == "trainer"]
    return len(set(marks)) >= _FEWEST_MARKS or (not foreign and bool(by_value))
