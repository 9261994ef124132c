"""A TRL recipe's keys -> the data section: what is read, cut and packed, and what bears loss."""

from typing import Any

from planner.job.objectives import OURS
from planner.recipes import trl_older
from planner.recipes.drafting import Dataset, carry, set_data
from planner.recipes.entries import Keys
from planner.recipes.recipe import Draft


def set_data_of(draft: Draft, keys: Keys, method: str) -> None:
    """The data section, and what is to do until the rows lie there."""
    kind = OURS[method].data[0] if method in OURS else "chat"
    datasets, columns = _datasets(keys, draft)
    set_data(draft, kind, datasets)
    _set_cut(draft, keys, method)
    if keys.has("eos_token"):
        draft.drop("eos_token", "see to do")
        draft.to_do.append(
            f"eos_token {keys.value('eos_token')}: here a sample ends with the tokenizer's own end-of-sequence token; "
            "set it in the tokenizer's folder if it is another one"
        )
    if method != "sft":
        return
    if keys.flag("packing"):
        _set_packing(draft, keys)
    only = keys.value("assistant_only_loss") is True or keys.value("completion_only_loss") is True
    if only or ("messages" not in columns and {"prompt", "completion"} & columns):
        draft.derive("data.loss_on", "completions", "data.loss_on completions")
    else:
        draft.derive("data.loss_on", "all", "data.loss_on all: TRL trains on every token of a conversation unless told")


def _set_cut(draft: Draft, keys: Keys, method: str) -> None:
    """What happens to rows that are too long; TRL's rules differ by method and version, planner has one."""
    mode = keys.word("truncation_mode")
    if mode not in {None, "keep_end", "keep_start"}:
        keys.refuse("truncation_mode", "TRL has keep_end and keep_start; write one of them")
    if keys.has("max_prompt_length") and not keys.flag("packing"):
        carry(draft, keys, "max_prompt_length", "data.max_prompt", keys.whole("max_prompt_length"))
    elif "max_prompt_length" in keys.entries:
        keys.value("max_prompt_length")
    elif method in {"dpo", "kto", "orpo"}:
        draft.to_do.append(
            "data.max_prompt: the recipe has no max_prompt_length, whose default is 512 in TRL 0.19, and TRL 1.16 has "
            "no such key: write data.max_prompt 512 for a recipe of the older, leave it out for the newer"
        )
    side, text = "start", f"truncation_mode {mode}" if mode else "the end of a prompt is kept there"
    if method in {"kto", "orpo"} and mode == "keep_start":
        side = "end"
    elif method == "dpo":
        text = "max_prompt_length keeps a prompt's end there, whatever truncation_mode says"
    if mode or keys.has("max_prompt_length"):
        draft.derive("data.cut_prompt", side, f"data.cut_prompt {side}: {text}")
    if method == "dpo" or (method == "sft" and mode == "keep_end"):
        draft.to_do.append(_dpo_cut(keys) if method == "dpo" else _KEPT_END)


_KEPT_END = (
    "truncation_mode keep_end: TRL keeps the last tokens of a conversation that is too long, here its end is cut; "
    "shorten such rows beforehand, or raise model.context"
)


def _dpo_cut(keys: Keys) -> str:
    """DPO there cuts prompt and completion together."""
    mode = keys.word("truncation_mode")
    kept = {"keep_end": "last", "keep_start": "first"}.get(str(mode), "last (TRL 0.19) or first (TRL 1.16)")
    every = " and of every prompt at most max_prompt_length," if keys.has("max_prompt_length") else ""
    return (
        f"pairs longer than model.context: TRL keeps the {kept} max_length tokens of prompt and completion "
        f"together,{every} here the prompt is cut to data.max_prompt where both do not fit, then the completion's "
        "end (docs/reference/data.md); nothing differs where all fit"
    )


def _set_packing(draft: Draft, keys: Keys) -> None:
    """Rows are filled here as best-fit decreasing fills them, each conversation whole; TRL has other ways, too."""
    carry(draft, keys, "packing", "data.packing", True)
    way = keys.word("packing_strategy")
    others = {
        "wrapped": "cuts conversations wherever a row is full, and attention crosses from one to the next",
        "bfd_split": "goes on in another row where a conversation is longer than one; here its end is cut",
        "bfd-requeue": "goes on in another row where a conversation is longer than one; here its end is cut",
        "ffd": "is first-fit, so other conversations may share a row and a batch",
    }
    if way in others:
        draft.drop("packing_strategy", "see to do")
        draft.to_do.append(
            f"packing_strategy {way}: it {others[way]}; here rows are packed best-fit, each conversation by itself"
        )
    elif way not in {None, "bfd"}:
        keys.refuse("packing_strategy", f"TRL has bfd, {', '.join(others)}; write one of them")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _datasets(keys: Keys, draft: Draft) -> tuple[list[Dataset], set[str]]:
    """What the recipe names, and the columns that it names."""
    columns: set[str] = set()
    if trl_older.is_older(keys.entries):
        return trl_older.datasets(keys, draft), columns
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
