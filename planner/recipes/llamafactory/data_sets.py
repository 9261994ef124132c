"""LLaMA-Factory's data sets: their places, and what dataset_info.json says of their rows (data/parser.py, loader.py).

What a job cannot say of the rows becomes a text for the to-do list, which names the data set and the key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, is_file
from planner.errors import RecipeError
from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.drafting import plain
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.row_sources import DatasetSource, place_of

_ONLINE = "ONLINE"
"""a dataset_dir with which data sets are names on the Hub"""
_FORMS = "docs/reference/data.md"
# Where rows are that planner does not load. All come before file_name.
_ELSEWHERE = ("ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_WHERE = (*_ELSEWHERE, "subset", "split", "folder")
# The columns of alpaca's rows by kind of data: planner's name -> LLaMA-Factory's.
_ALPACA = {
    "chat": {"prompt": "prompt", "completion": "response"},
    "pairs": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    "feedback": {"prompt": "prompt", "completion": "response", "label": "kto_tag"},
}
_MORE = ("system", "tools", "images", "videos", "audios", "kto_tag")
_OF_ALPACA = ("prompt", "query", "response", "history", *_MORE)
_OF_MESSAGES = ("messages", *_MORE)
_TAGS = {
    "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
    "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system",
}  # fmt: skip
# The tags with which messages are planner's. A role of its own for calls would be one that planner does not train on.
_OUR_TAGS = {
    "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
    "function_tag": None,
}  # fmt: skip
# Who asks and who answers.
_SIDES = (("user_tag", "observation_tag"), ("assistant_tag", "function_tag"))


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A data set that a recipe names."""

    source: DatasetSource
    to_do: tuple[str, ...] = ()
    """what the job does not say of its rows"""


def data_sets(keys: KeyReader, key: str, kind: str) -> list[NamedSet]:
    """The data sets at `key`: names of dataset_info.json, from there if the file is on this machine.

    Args:
        keys: the recipe's keys, for mistakes.
        key: dataset or eval_dataset.
        kind: the job's `data.kind`.
    """
    said = keys.value(key)
    names = _names(said)
    if said is None:
        return []
    if not names or not all(isinstance(name, str) and name for name in names):
        keys.refuse_in_job(key, "Write the names of data sets, with commas between them")
        return []
    folder = str(keys.read("dataset_dir"))
    if folder == _ONLINE:
        return [NamedSet(source=DatasetSource(name=name)) for name in names]
    known, streams = _dataset_info(keys, folder), bool(keys.value("streaming"))
    return [_named_set(f"{key} {name}", name, known.get(name), folder, kind, streams=streams) for name in names]


def ask_where(draft: Draft, keys: KeyReader) -> None:
    """Says which data sets planner knows only by name."""
    folder, said = str(keys.read("dataset_dir")), keys.value("dataset")
    if folder == _ONLINE:
        return
    if not (known := _dataset_info(keys, folder)):
        draft.ask(
            f"dataset {plain(said)}: planner found no dataset_info.json in {folder} (dataset_dir), which describes it"
        )
    elif unknown := [str(name) for name in _names(said) if name not in known]:
        shown = ", ".join(unknown)
        draft.ask(f"dataset {shown}: not in dataset_info.json of {folder}, so LLaMA-Factory does not load it")


def _names(said: Any) -> list[Any]:
    """The names in a text with commas, or in a list."""
    if isinstance(said, str):
        return [each.strip() for each in said.split(",")]
    return said if isinstance(said, list) else []


def _dataset_info(keys: KeyReader, folder: str) -> dict[str, Any]:
    """The data sets of dataset_info.json, below the folder that the user is in or beside the recipe. Empty if none."""
    for place in (Path(folder), Path(keys.source).parent / folder):
        file = place / "dataset_info.json"
        try:
            if is_file(str(file)):
                return mapping_of(text_of(str(file)), str(file))
        except RecipeError as error:
            keys.lacks(str(error))
    return {}


def _named_set(title: str, name: str, info: Any, folder: str, kind: str, *, streams: bool) -> NamedSet:
    """A data set as dataset_info.json describes it. `title` names it in the to-do list."""
    if not isinstance(info, dict):
        return NamedSet(source=DatasetSource(name=name, hub=False))
    source = _source(name, info, folder)
    columns = _columns(kind, info)
    mapped = replace(source, columns=columns or ())
    place = place_of(mapped, kind)
    is_read = bool(place.keys) and not place.lack
    to_do = [*_of_place(source, info, is_loaded=bool(place.load))]
    if info.get("num_samples") is not None and not streams:
        some = plain(info["num_samples"])
        to_do.append(f"num_samples {some}: LLaMA-Factory takes {some} random rows, the draft all. Save {some} alone")
    to_do += _of_form(kind, info, columns, is_read=is_read)
    return NamedSet(source=mapped if is_read else source, to_do=tuple(f"{title}: {text}" for text in to_do))


def _source(name: str, info: Mapping[str, Any], folder: str) -> DatasetSource:
    hub, file = info.get("hf_hub_url"), info.get("file_name")
    said = {key: its for key in ("subset", "split", "folder") if isinstance(its := info.get(key), str)}
    if isinstance(hub, str):
        return DatasetSource(name=hub, config=said.get("subset"), split=said.get("split"), folder=said.get("folder"))
    if isinstance(file, str) and not any(key in info for key in _ELSEWHERE):
        split = said.get("split", "")
        part = split if split.startswith("train[") else None
        return DatasetSource(name=str(Path(folder) / file), hub=False, split=part)
    return DatasetSource(name=name, hub=False)


def _of_place(source: DatasetSource, info: Mapping[str, Any], *, is_loaded: bool) -> Iterator[str]:
    """Which rows of their place LLaMA-Factory takes, where the job does not say it."""
    if "hf_hub_url" in info:
        return
    if any(key in info for key in _ELSEWHERE):
        said = ", ".join(f"{key} {plain(info[key])}" for key in _WHERE if info.get(key) is not None)
        yield f"{said}: planner does not load it from there. Save its rows in a file"
        return
    split, is_folder = info.get("split", "train"), _is_folder(source.name)
    if split != "train" and not (source.split and (is_loaded or is_folder)):
        yield f"split {plain(split)}: the draft takes all rows of the file. Save those of the split alone"
    if source.split is None and is_folder:
        said = f"file_name {plain(info.get('file_name'))}"
        yield f"{said}: LLaMA-Factory takes all files of this folder, also those whose names say test. Join them"


def _is_folder(name: str) -> bool:
    try:
        return expanded(name).is_dir()
    except OSError:
        return False


def _of_form(kind: str, info: Mapping[str, Any], columns: Mapping[str, str] | None, *, is_read: bool) -> Iterator[str]:
    """What LLaMA-Factory makes of the rows, where planner makes something else of them.

    `columns` are those of the job, None if planner does not read the rows so. `is_read` says whether the job has them.
    """
    is_ranking = info.get("ranking") is True
    if is_ranking != (kind == "pairs"):
        yield f"ranking {plain(is_ranking)}: LLaMA-Factory refuses it in this stage. Correct dataset_info.json"
        return
    said = ", ".join(
        f"{key} {plain(info[key])}"
        for key in ("formatting", "columns", "tags")
        if info.get(key) not in (None, "alpaca") and (key != "tags" or _is_messages(info))
    )
    if columns is None:
        yield f"{said}: planner does not read such rows. Write them in a form of {_FORMS}"
    elif columns and not is_read and any(ours != theirs for ours, theirs in columns.items()):
        yield f"{said}: planner reads the columns {', '.join(columns)}. Rename them so, or write data.columns"
    if columns and _is_messages(info):
        tags = _tags(info)
        asks, says = (" or ".join(filter(None, map(tags.get, names))) for names in _SIDES)
        first = f"a {tags['system_tag']} message may be first" if tags.get("system_tag") else "no system message"
        turns = f"in which {asks} and {says} take turns ({first})"
        yield f"{said}: LLaMA-Factory takes only conversations {turns}. planner takes all: remove the others"
    elif columns:
        how = "planner takes texts as they are: write lists of messages"
        yield f"{said}: LLaMA-Factory puts these texts into its template. {how}"


def _is_messages(info: Mapping[str, Any]) -> bool:
    return bool(info.get("formatting", "alpaca") != "alpaca")


def _columns(kind: str, info: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The job's columns with their names in the rows, None if planner does not read from them what LLaMA-Factory does.

    Empty for alpaca's own columns, which dataset_info.json need not name.
    """
    said = info.get("columns")
    if said is None and not _is_messages(info):
        return {}
    named = {key: its for key, its in said.items() if its} if isinstance(said, dict) else {"messages": "conversations"}
    read = set(_OF_MESSAGES if _is_messages(info) else _OF_ALPACA)
    if _is_messages(info):
        ours, tags = {"messages": "messages"}, _tags(info)
        if kind != "chat" or any(tags.get(tag) != its for tag, its in _OUR_TAGS.items()):
            return None
    else:
        ours = _ALPACA[kind]
        # Of a pair LLaMA-Factory reads no response.
        read = (read - {"response"}) | {"chosen", "rejected"} if kind == "pairs" else read
    used = read & named.keys()
    if used != set(ours.values()) or not all(isinstance(named[key], str) for key in used):
        return None
    return {name: named[key] for name, key in ours.items()}


def _tags(info: Mapping[str, Any]) -> Mapping[str, str | None]:
    """The tags of messages. One that is missing beside others is none (data/parser.py, set_attr)."""
    said = info.get("tags")
    return {tag: said.get(tag) or None for tag in _TAGS} if isinstance(said, dict) else _TAGS
