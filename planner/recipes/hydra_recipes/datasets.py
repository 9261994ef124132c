"""The names of data sets in recipes of the DPO repository and of HALOs, and the loaders that they mean."""

from collections.abc import Sequence
from typing import Literal, cast

from planner.data.named_loaders import LOADERS
from planner.job import LoaderName, MixtureSet, Rows
from planner.recipes.row_sources import DatasetSource

# HALOs' loaders of parts of Tulu 2.5's preferences: the end of their name -> the split on the hub.
_TULU = {
    "shp": "shp_2",
    "stackexchange": "stack_exchange_paired",
    "hh": "hh_rlhf",
    "ultra": "ultrafeedback_overall",
    "ultra_fg": "ultrafeedback_mean_aspects",
    "prm": "prm800k_pairs_phase2",
    "arena23": "chatbot_arena_2023",
    "arena24": "chatbot_arena_2024",
    "helpsteer": "helpsteer",
    "af_gpt4": "alpaca_farm_gpt4_pref",
    "af_human": "alpaca_farm_human_pref",
    "capybara": "capybara",
    "orca": "orca_dpo_pairs",
    "nectar": "nectar",
}
_TULU_LOADER: LoaderName = "halos/tulu_v25"


System = Literal["dpo", "halos"]


def sources(system: System, names: Sequence[str], split: str) -> list[DatasetSource]:
    """A data set for each name. A name that the system has no loader for is a file, or the user's own loader.

    Args:
        system: whose loaders these names are.
        names: the names in the recipe.
        split: train or test.
    """
    return [_source(system, name, split) for name in names]


def _source(system: str, name: str, split: str) -> DatasetSource:
    if f"{system}/{name}" in LOADERS:
        return DatasetSource(name=name, hub=False, split=split, loader=cast("LoaderName", f"{system}/{name}"))
    part = _TULU.get(name.removeprefix("tulu_v25_")) if system == "halos" and name.startswith("tulu_v25_") else None
    if part is not None:
        return DatasetSource(name=name, hub=False, split=part, loader=_TULU_LOADER)
    return DatasetSource(name=name, hub=False)


def names_in(system: System, rows: Rows | None, split: str) -> list[str]:
    """A system's names of a job's data sets. Empty if it does not name all of them, as the job takes their rows.

    Args:
        system: whose loaders these names are.
        rows: the data sets, None for none.
        split: train or test, whichever the system takes for these names.
    """
    found = [_name(system, each, split) for each in rows.sets] if rows else []
    return found if all(found) else []


def _name(system: str, each: MixtureSet, split: str) -> str:
    if each.loader is None or not each.loader.startswith(f"{system}/") or each.path != LOADERS[each.loader].path:
        return ""
    settings = ("config", "folder", "revision", "columns", "weight", "fraction", "rows")
    if any(getattr(each, name) is not None for name in settings):
        return ""
    if each.loader == _TULU_LOADER:
        return next((f"tulu_v25_{name}" for name, part in _TULU.items() if part == each.split), "")
    return each.loader.removeprefix(f"{system}/") if (each.split or "train") == split else ""
