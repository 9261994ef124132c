"""Drafts a job's data section from the keys of a TRL recipe: data sets, truncation, packing, and what bears loss."""

from planner.recipes.drafting import carry, kind_of, plain
from planner.recipes.drafting_data import set_data
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Note
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.dialect import NamedSets
from planner.recipes.trl.datasets import named_sets


def set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    """Sets the data section, adds what the user must do to have the rows there, and returns the data sets."""
    named = named_sets(keys, facts.method, evaluates=facts.evaluates)
    _set_data(draft, keys, facts.method, named)
    return named


def _set_data(draft: Draft, keys: KeyReader, method: str, named: NamedSets) -> None:
    set_data(draft, kind_of(method), named.train, named.seed)
    draft.told |= named.told
    _note_carried(draft, keys)
    for source in named.train:
        if source.text:
            draft.carried.append(Note(key="dataset_text_field", text=f"data.columns: {{text: {source.text}}}"))
    if named.held_key:
        _drop_replaced(draft, keys)
    if named.remark:
        draft.derived.append(Note(key="data.mixture", text=f"data.mixture: {named.remark}"))
    columns = {column for each in named.train for column in each.columns}
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


def _note_carried(draft: Draft, keys: KeyReader) -> None:
    """Notes the keys of a single data set whose values stand in the job."""
    for key, ours in (("dataset_name", "path"), ("dataset_config", "config"), ("dataset_train_split", "split")):
        if keys.was_read(key) and keys.has(key) and draft.job["data"].get(ours) == str(keys.value(key)):
            draft.carried.append(Note(key=key, text=f"data.{ours}: {plain(keys.value(key))}"))


def _drop_replaced(draft: Draft, keys: KeyReader) -> None:
    """Notes the keys of a single data set that the scripts ignore beside several."""
    for key in ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"):
        if keys.has(key):
            keys.value(key)
            draft.drop(key, "the scripts take the list of data sets instead")


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
