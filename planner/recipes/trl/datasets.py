"""The data sets that a TRL recipe names, to train on and to evaluate on.

Three keys name them: `dataset_mixture` of the alignment-handbook, `datasets` of TRL, and `dataset_name`. TRL's scripts
take the first of these that the recipe has.
"""

from dataclasses import replace
from typing import Any

from planner.files.messages import show
from planner.recipes.entries import KeyReader
from planner.recipes.row_sources import DatasetSource
from planner.recipes.trainer.dialect import NamedSets
from planner.recipes.trl import handbook_v03

_MIXTURE = "dataset_mixture"
_FIRST_ROWS = "the script takes the first rows of a set, planner chooses as many by data.seed"


def named_sets(keys: KeyReader, method: str, *, evaluates: bool) -> NamedSets:
    """The data sets that a recipe names. Notes mistakes in `keys`.

    `evaluates` says whether the recipe evaluates during training.
    """
    if handbook_v03.is_older(keys.entries):
        return _of_older(keys)
    if keys.value(_MIXTURE) or (keys.has_below(_MIXTURE) and f"{_MIXTURE}.datasets" not in keys.entries):
        keys.lacks(f"{_MIXTURE}: found no datasets in it. Write datasets below it, a list of sections with id")
    for key, name in ((f"{_MIXTURE}.datasets", "id"), ("datasets", "path")):
        if keys.value(key) and not isinstance(keys.value(key), list):
            keys.lacks(f"{key}: found {show(keys.value(key))}. Write a list of data sets, each with {name}")
    if isinstance(mixture := keys.value(f"{_MIXTURE}.datasets"), list):
        return _of_mixture(keys, mixture)
    if isinstance(listed := keys.value("datasets"), list) and listed:
        return _of_list(keys, listed)
    name = keys.value("dataset_name")
    if not isinstance(name, str):
        return NamedSets()
    return _of_name(keys, name, method, evaluates=evaluates)


def _of_older(keys: KeyReader) -> NamedSets:
    """The data sets of `dataset_mixer`."""
    train, test = handbook_v03.datasets(keys)
    is_part = any(each.fraction not in {None, 1} for each in train)
    told = frozenset({"dataset_splits", "dataset_configs"})
    return NamedSets(train=train, test=test, remark=_FIRST_ROWS if is_part else "", told=told)


def _of_name(keys: KeyReader, name: str, method: str, *, evaluates: bool) -> NamedSets:
    """The data set at `dataset_name`. Its test split is only for evaluation."""
    text = keys.scalar_text("dataset_text_field") if method == "sft" else None
    train = DatasetSource(
        name=name,
        config=_text(keys.value("dataset_config")),
        split=str(keys.value("dataset_train_split", "train")),
        text=text if text not in {"text", "messages"} else None,
    )
    test = [replace(train, split=keys.text("dataset_test_split", "test"))] if evaluates else []
    return NamedSets(train=[train], test=test, told=frozenset({"dataset_text_field"}))


def _of_mixture(keys: KeyReader, mixture: list[Any]) -> NamedSets:
    """The data sets of the handbook's `dataset_mixture`. A weight is the part of the rows that it takes."""
    for name in [key for key in keys.entries if key.startswith(f"{_MIXTURE}.")]:
        keys.value(name)
    key, train = f"{_MIXTURE}.datasets", list[DatasetSource]()
    for each in _sections(keys, key, mixture, "id"):
        fraction = handbook_v03.share_of(keys, f"{key}: the weight of {each['id']}", each.get("weight"))
        found = DatasetSource(
            name=each["id"],
            config=_text(each.get("config")),
            split=_split(keys, key, each),
            columns=_columns(each),
            fraction=fraction,
        )
        if fraction != 0:
            train.append(found)
    seed = keys.whole(f"{_MIXTURE}.seed", 0, least=0)
    return NamedSets(train=train, seed=seed, held_key=f"{_MIXTURE}.test_split_size")


def _of_list(keys: KeyReader, listed: list[Any]) -> NamedSets:
    """The data sets of TRL's `datasets`. Fractions are shares of the mixture, relative to each other."""
    sections = _sections(keys, "datasets", listed, "path")
    shares: list[Any] = [each.get("fraction") for each in sections]
    has_shares = any(share is not None for share in shares)
    if has_shares and not all(_is_share(share) for share in shares):
        keys.lacks("datasets: write a fraction of 0 or more for all data sets or for none, as TRL wants it")
        shares, has_shares = [None] * len(sections), False
    train = [
        DatasetSource(
            name=each["path"],
            config=_text(each.get("name")),
            split=_split(keys, "datasets", each),
            files=each.get("data_files"),
            folder=_text(each.get("data_dir")),
            columns=_columns(each),
            weight=float(share) if has_shares else None,
        )
        for each, share in zip(sections, shares, strict=True)
        if not has_shares or share
    ]
    relative = "weight is the recipe's fraction, because TRL takes fractions relative to each other"
    remark = f"{relative}, and {_FIRST_ROWS}" if has_shares else ""
    return NamedSets(train=train, held_key="test_split_size", remark=remark)


def _sections(keys: KeyReader, key: str, listed: list[Any], name: str) -> list[dict[str, Any]]:
    """The sections of a list that name a data set. Others are mistakes."""
    found = [each for each in listed if isinstance(each, dict) and isinstance(each.get(name), str) and each[name]]
    if len(found) < len(listed):
        wrong = next(each for each in listed if each not in found)
        keys.lacks(f"{key}: found {show(wrong)}, without the name of a data set. Write {name}")
    return found


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> str | None:
    return str(value) if value else None


def _split(keys: KeyReader, key: str, section: dict[str, Any]) -> str | None:
    split = section.get("split")
    if split is not None and not isinstance(split, str):
        keys.lacks(f"{key}: found the split {show(split)}. Write a section for each split, with its name")
    return _text(split)


def _columns(section: dict[str, Any]) -> tuple[str, ...]:
    listed = section.get("columns")
    names = listed if isinstance(listed, list) else [listed] if isinstance(listed, str) else []
    return tuple(str(column) for column in names)
