"""The data sets that recipes of the DPO repository and of HALOs name."""

from collections.abc import Sequence
from typing import Literal, cast

from planner.data.named_loaders import LOADERS
from planner.job import LoaderName
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


def sources(system: Literal["dpo", "halos"], names: Sequence[str], split: str) -> list[DatasetSource]:
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
