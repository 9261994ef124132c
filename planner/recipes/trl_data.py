"""Drafts a job's data section from the keys of a TRL recipe: data sets, truncation, packing, and what bears loss."""

from typing import Any

from planner.job.objectives import OURS
from planner.recipes import handbook_v03
from planner.recipes.drafting import carry, plain
from planner.recipes.drafting_data import set_data
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.row_sources import DatasetSource


def set_data_of(draft: Draft, keys: KeyReader, method: str) -> None:
    """Sets the data section, and adds what the user must do to have the rows there."""
    kind = OURS[method].data[0] if method in OURS else "chat"
    datasets, columns = _datasets(keys, draft)
    set_data(draft, kind, datasets)
    _set_cut(draft, keys, method)
    if keys.has("eos_token"):
        draft.drop("eos_token", "see to do")
        draft.ask(
            f"eos_token {keys.value('eos_token')}: planner ends a sample with the tokenizer's own end-of-sequence "
            "token. Change it in the tokenizer's folder if it is another one"
        )
    if method != "sft":
        return
    if keys.flag("packing"):
        _set_packing(draft, keys)
    only = keys.value("assistant_only_loss") is True or keys.value("completion_only_loss") is True
    if only or ("messages" not in columns and {"prompt", "completion"} & columns):
        draft.derive("data.loss_on", "completions", "data.loss_on completions")
    else:
        draft.derive("data.loss_on", "all", "data.loss_on all: TRL by default trains on every token of a conversation")


def _set_cut(draft: Draft, keys: KeyReader, method: str) -> None:
    """Sets what happens to rows that are too long. TRL's rules differ by method and version, planner has one."""
    mode = keys.scalar_text("truncation_mode")
    if mode not in {None, "keep_end", "keep_start"}:
        keys.refuse("truncation_mode", "TRL has keep_end and keep_start: write one of them")
    if keys.has("max_prompt_length") and not keys.flag("packing"):
        carry(draft, keys, "max_prompt_length", "data.max_prompt", keys.whole("max_prompt_length"))
    elif "max_prompt_length" in keys.entries:
        keys.value("max_prompt_length")
    elif method in {"dpo", "kto", "orpo"}:
        draft.ask(
            "data.max_prompt: the recipe has no max_prompt_length, whose default is 512 in TRL 0.19. TRL 1.16 has no "
            "such key. Write data.max_prompt 512 for a recipe of the older version"
        )
    side, text = "start", f"truncation_mode {mode}" if mode else "TRL keeps the end of a prompt"
    if method in {"kto", "orpo"} and mode == "keep_start":
        side = "end"
    elif method == "dpo":
        text = "TRL's max_prompt_length keeps the end of a prompt, regardless of truncation_mode"
    if mode or keys.has("max_prompt_length"):
        draft.derive("data.cut_prompt", side, f"data.cut_prompt {side}: {text}")
    if method == "dpo" or (method == "sft" and mode == "keep_end"):
        draft.ask(_dpo_cut(keys) if method == "dpo" else _KEPT_END)


_KEPT_END = (
    "truncation_mode keep_end: TRL keeps the last tokens of a conversation that is too long, planner cuts its end. "
    "Shorten such rows beforehand, or raise model.context"
)


def _dpo_cut(keys: KeyReader) -> str:
    """The to-do on long pairs: TRL's dpo cuts prompt and completion together."""
    mode = keys.scalar_text("truncation_mode")
    kept = {"keep_end": "last", "keep_start": "first"}.get(str(mode), "last (TRL 0.19) or first (TRL 1.16)")
    every = ", and at most max_prompt_length of every prompt" if keys.has("max_prompt_length") else ""
    return (
        f"pairs longer than model.context: TRL keeps the {kept} max_length tokens of prompt and completion together"
        f"{every}. planner cuts the prompt to data.max_prompt if both do not fit, then the completion's end "
        "(docs/reference/data.md)"
    )


def _set_packing(draft: Draft, keys: KeyReader) -> None:
    """Sets packing. planner packs best-fit decreasing with whole conversations, TRL also has other strategies."""
    carry(draft, keys, "packing", "data.packing", True)
    way = keys.scalar_text("packing_strategy")
    others = {
        "wrapped": "cuts conversations where a row is full, and attention crosses from one to the next",
        "bfd_split": "continues a conversation that is longer than a row in another row, planner cuts its end",
        "bfd-requeue": "continues a conversation that is longer than a row in another row, planner cuts its end",
        "ffd": "is first-fit, so other conversations share a row and a batch",
    }
    if way in others:
        draft.drop("packing_strategy", "see to do")
        draft.ask(
            f"packing_strategy {way}: it {others[way]}. planner packs best-fit, and attention stays in a conversation"
        )
    elif way not in {None, "bfd"}:
        keys.refuse("packing_strategy", f"TRL has bfd, {', '.join(others)}: write one of them")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _datasets(keys: KeyReader, draft: Draft) -> tuple[list[DatasetSource], set[str]]:
    """The data sets and the columns that the recipe names."""
    columns: set[str] = set()
    if handbook_v03.is_older(keys.entries):
        return handbook_v03.datasets(keys, draft), columns
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
                    DatasetSource(
                        weight=each.get("weight"),
                        seed=keys.whole("dataset_mixture.seed", 0, least=0),
                        name=each["id"],
                        config=str(config) if config else None,
                        split=str(split) if split else None,
                        columns=tuple(str(column) for column in _listed(each.get("columns"))),
                    )
                )
        return found, columns
    if isinstance(listed := keys.value("datasets"), list):
        return _of_trl(listed, draft, columns), columns
    name = keys.value("dataset_name")
    if not isinstance(name, str):
        return [], columns
    config, split = keys.value("dataset_config"), keys.value("dataset_train_split", "train")
    return [DatasetSource(name=name, config=str(config) if config else None, split=str(split))], columns


def _of_trl(listed: list[Any], draft: Draft, columns: set[str]) -> list[DatasetSource]:
    """The data sets of TRL's own list `datasets`, each with the arguments of `load_dataset`. Adds their columns."""
    found, parts = [], []
    for each in listed:
        if not isinstance(each, dict) or not isinstance(each.get("path"), str):
            continue
        kept = tuple(str(column) for column in _listed(each.get("columns")))
        columns |= {*kept}
        config, split, folder = (each.get(key) for key in ("name", "split", "data_dir"))
        if each.get("fraction") is not None:
            parts.append(f"{each['path']} {plain(each['fraction'])}")
        source = DatasetSource(
            name=each["path"],
            config=str(config) if config else None,
            split=str(split) if split else None,
            files=each.get("data_files"),
            folder=str(folder) if folder else None,
            columns=kept,
        )
        found.append(source)
    if parts:
        text = (
            "datasets: the recipe mixes fractions of these data sets (fraction). Take their first rows in those shares"
        )
        draft.ask(f"{text}: {', '.join(parts)}")
    return found
