"""A TRL recipe's keys -> the data section: what is read, cut and packed, and what bears loss."""

from typing import Any

from planner.interop.drafting import DATA_OF, Dataset, carry, set_data
from planner.interop.entries import Keys
from planner.interop.recipe import Draft


def set_data_of(draft: Draft, keys: Keys, method: str) -> None:
    """The data section, and what is to do until the rows lie there."""
    kind = DATA_OF.get(method, "pairs" if method == "orpo" else "chat")
    datasets, columns = _datasets(keys)
    set_data(draft, kind, datasets)
    if keys.has("max_prompt_length") and not keys.flag("packing"):
        carry(draft, keys, "max_prompt_length", "data.max_prompt", keys.whole("max_prompt_length"))
    if keys.has("truncation_mode"):
        side = "end" if keys.value("truncation_mode") == "keep_start" else "start"
        draft.derive(
            "data.cut_prompt", side, f"data.cut_prompt {side}: truncation_mode {keys.value('truncation_mode')}"
        )
    if method != "sft":
        return
    if keys.flag("packing"):
        carry(draft, keys, "packing", "data.packing", True)
    only = keys.value("assistant_only_loss") is True or keys.value("completion_only_loss") is True
    if only or ("messages" not in columns and {"prompt", "completion"} & columns):
        draft.derive("data.loss_on", "completions", "data.loss_on completions")
    else:
        draft.derive("data.loss_on", "all", "data.loss_on all: TRL trains on every token of a conversation unless told")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _datasets(keys: Keys) -> tuple[list[Dataset], set[str]]:
    """What the recipe names, and the columns that it names."""
    columns: set[str] = set()
    for name in [key for key in keys.entries if key.startswith("dataset_mixture.")]:
        keys.value(name)
    mixture = keys.value("dataset_mixture.datasets")
    if isinstance(mixture, list):
        found = []
        for each in mixture:
            if isinstance(each, dict) and isinstance(each.get("id"), str):
                columns |= {str(column) for column in _listed(each.get("columns"))}
                config, split = each.get("config"), each.get("split")
                found.append(
                    Dataset(
                        weight=each.get("weight"),
                        seed=keys.whole("dataset_mixture.seed", 0, least=0),
                        name=each["id"],
                        config=str(config) if config else None,
                        split=str(split) if split else None,
                    )
                )
        return found, columns
    name = keys.value("dataset_name")
    if not isinstance(name, str):
        return [], columns
    config, split = keys.value("dataset_config"), keys.value("dataset_train_split", "train")
    return [Dataset(name=name, config=str(config) if config else None, split=str(split))], columns
