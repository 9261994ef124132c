"""Where a recipe's rows are: a file or a folder on this machine, or a data set of the hub, as a job names them.

For the few that no job can name there is the code that loads them. Paths are relative to the folder that planner runs
in, as `data.path` is.
"""

import glob
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from planner.base.disk import expanded, is_file, place_text
from planner.data.examples import BadRow
from planner.data.formats import CHAT, FEEDBACK, PAIRS, format_of
from planner.data.hub_sets import is_hub_name
from planner.data.named_loaders import LOADERS
from planner.data.row import row_of
from planner.data.row_files import reader_of
from planner.errors import PlannerError
from planner.job import LoaderName

# The loader of the datasets library for a file, by the end of its name.
_LOADERS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".arrow": "arrow",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_GENERIC = frozenset({"json", "parquet", "csv", "text", "arrow"})
_PART = re.compile(r"\[.*\]|\+")
_HUB_PARTS = 2

_FORMATS = {"chat": CHAT, "pairs": PAIRS, "feedback": FEEDBACK}


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A data set that a recipe names."""

    name: str
    config: str | None = None
    split: str | None = None
    fraction: float | None = None
    """the part of its rows that is taken, None for all"""
    weight: float | None = None
    """its share in the mixture relative to the other sets', None if the mixture has no such shares"""
    hub: bool = True
    """whether `datasets.load_dataset` can load it by this name"""
    files: Any = None
    """`data_files` of `load_dataset`: a file, a list of files, or files by split"""
    folder: str | None = None
    """`data_dir` of `load_dataset`"""
    columns: tuple[str, ...] | Mapping[str, str] = ()
    """the columns that the recipe keeps, or planner's names with those in the data. All if empty"""
    loader: LoaderName | None = None
    """whose rules make samples of it, for a name of the DPO repository's or HALOs'"""
    text: str | None = None
    """the column of plain text, if it has another name than `text`"""

    @property
    def wanted_split(self) -> str:
        """The split that the recipe trains on."""
        return self.split or "train"

    @property
    def takes_a_part(self) -> bool:
        """Whether the split is only a part of one, such as `train[:10%]`, or several."""
        return bool(_PART.search(self.wanted_split))


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is at the name of a data set. Without `keys` and `load`, nothing that planner knows loads its rows."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """path, config, folder and split for the job, empty if planner does not read the rows where they are"""
    load: str = ""
    """Python that loads the rows"""
    lack: str = ""
    """what the user must see to before, as a text for the to-do list"""


def parts_of(source: DatasetSource) -> list[DatasetSource]:
    """A loader of the datasets library and its files as these files, each a set. Any other data set as it is."""
    files = source.files
    if source.name not in _GENERIC or source.takes_a_part:
        return [source]
    if files is None and source.folder is not None:
        return [replace(source, name=source.folder, folder=None)]
    if isinstance(files, Mapping):
        files = files.get(source.wanted_split)
    names = files if isinstance(files, list | tuple) else [files]
    is_one_set = len(names) > 1 and (source.fraction, source.weight) != (None, None)
    if source.folder or is_one_set or not all(isinstance(name, str) and "://" not in name for name in names):
        return [source]
    return [replace(source, name=name, files=None, config=None, split=None) for name in names]


def place_of(source: DatasetSource, kind: str) -> Place:
    """Where the rows of a data set are, and what loads them. Only the first row of a file is read."""
    if source.loader is not None:
        return Place(keys={"path": LOADERS[source.loader].path, "split": source.wanted_split, "loader": source.loader})
    return _place_of_name(source, kind)


def _place_of_name(source: DatasetSource, kind: str) -> Place:
    path = expanded(source.name)
    try:
        if is_file(path):
            return _file(source, kind)
        if path.is_dir():
            return _folder(source, path)
    except (OSError, ValueError):  # a name that no file can have
        pass
    if not source.hub:
        return Place()
    if source.files is None and _is_path(source.name):
        return _missing(source)
    if source.files is None and is_hub_name(source.name):
        return Place(keys=_named(source))
    return Place(load=f"load_dataset({_arguments(source)})")


def _named(source: DatasetSource) -> dict[str, str]:
    """A data set with the hub's layout as a job names it."""
    named = {"path": source.name, "config": source.config, "folder": source.folder, "split": source.wanted_split}
    return {key: value for key, value in named.items() if value}


def short_name(name: str) -> str:
    """The last part of a path or of a hub's name, without the end that says a file's form: `in/rows.csv` -> `rows`."""
    last = PurePath(name).name or name
    return last.split(".")[0] or last if _loader(name) else last


def _is_path(name: str) -> bool:
    """Whether a name that is nowhere here can only be a path. The hub's names have one slash at most."""
    if "://" in name:
        return False
    pure = PurePath(name)
    is_local = pure.is_absolute() or pure.parts[:1] in {(".",), ("..",)} or name.startswith(("./", "~"))
    return is_local or len(pure.parts) > _HUB_PARTS or _loader(name) != ""


def _loader(name: str) -> str:
    suffixes = PurePath(name).suffixes
    while suffixes and suffixes[-1].lower() in _COMPRESSED:
        suffixes.pop()
    return _LOADERS.get(suffixes[-1].lower(), "") if suffixes else ""


def _file(source: DatasetSource, kind: str) -> Place:
    """A file: planner reads it, or a loader of the datasets library does."""
    by_loader = _of_loader(source)
    try:
        found = next(reader_of(expanded(source.name))(expanded(source.name)), None)
    except PlannerError:
        return by_loader
    if found is None:
        return Place(keys={"path": source.name}, lack=f"{source.name} has no rows. Write some into it")
    row = row_of(found, (0, 1))
    fields = row.fields
    if isinstance(source.columns, Mapping):  # as planner.data.rows.renamed, which needs numpy
        fields = {ours: fields[theirs] for ours, theirs in source.columns.items() if theirs in fields}
    try:
        format_of(fields, kind, _FORMATS[kind]).read(fields)
        why = row.flaw
    except BadRow as error:
        why = row.flaw or str(error)
    lack = f"the first row of {source.name} cannot be used: {why}" if why else ""
    return replace(by_loader, lack=lack) if source.takes_a_part else Place(keys={"path": source.name}, lack=lack)


def _of_loader(source: DatasetSource) -> Place:
    """The code that loads a file by the end of its name. A file has one split, which is called train."""
    loader = _loader(source.name)
    if not loader:
        return Place()
    tabs = ", sep='\\t'" if PurePath(source.name).suffixes[-1:] == [".tsv"] else ""
    part = source.wanted_split[source.wanted_split.find("[") :] if "[" in source.wanted_split else ""
    file = str(expanded(source.name))
    return Place(load=f"load_dataset({loader!r}, data_files={file!r}{tabs}, split={'train' + part!r})")


def _folder(source: DatasetSource, folder: Path) -> Place:
    """A folder that `save_to_disk` wrote, with its splits in it or one in each folder, or one of the hub's layout."""
    if source.files is not None:
        return Place(load=f"load_dataset({_arguments(replace(source, name=str(folder)))})")
    if source.folder is not None:
        below = replace(source, name=f"{source.name.rstrip('/')}/{source.folder}", folder=None)
        return _folder(below, folder / source.folder)
    wanted = source.wanted_split
    if _is_saved(folder):
        return _saved(source, folder)
    if _is_saved(folder / wanted):
        return Place(keys={"path": f"{source.name.rstrip('/')}/{wanted}"})
    return Place(keys=_named(source))


def _saved(source: DatasetSource, folder: Path) -> Place:
    """A folder that `save_to_disk` wrote, with one table or one for each split."""
    wanted, splits = source.wanted_split, _splits_of(folder)
    if source.takes_a_part:
        lack = f"the recipe takes the split {wanted} of {source.name}. Save those rows alone"
        return Place(keys={"path": source.name}, lack=lack)
    if splits and wanted not in splits:
        lack = f"{source.name} has no split {wanted}, but {', '.join(splits)}. Write one of them"
        return Place(keys={"path": source.name}, lack=lack)
    return Place(keys={"path": source.name, **({"split": wanted} if splits and wanted != "train" else {})})


def _splits_of(folder: Path) -> list[str]:
    """The splits in a folder that `save_to_disk` wrote, none if it has one table."""
    try:
        found = json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
        return [str(name) for name in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_saved(folder: Path) -> bool:
    names = ("dataset_info.json", "state.json")
    return is_file(folder / "dataset_dict.json") or all(is_file(folder / name) for name in names)


def _missing(source: DatasetSource) -> Place:
    """A pattern, or a path with nothing at it: `data.path` if planner would read it, other files need their loader."""
    is_there = any(glob.iglob(str(expanded(source.name)), recursive=True))  # noqa: PTH207  as data.path is read
    lack = "" if is_there else f"found nothing at {source.name}{place_text(source.name)}. Put the data there"
    loader = _loader(source.name)
    if source.takes_a_part or loader not in {"json", "parquet", ""}:
        return replace(_of_loader(source), lack=lack)
    split = {} if loader or source.wanted_split == "train" else {"split": source.wanted_split}
    return Place(keys={"path": source.name, **split}, lack=lack)


def _arguments(source: DatasetSource) -> str:
    config = source.config if source.config != "default" else None
    parts = [repr(source.name), *([repr(config)] if config else [])]
    if source.folder is not None:
        parts.append(f"data_dir={source.folder!r}")
    if source.files is not None:
        parts.append(f"data_files={_plain(source.files)!r}")
    return ", ".join([*parts, f"split={source.wanted_split!r}"])


def _plain(files: Any) -> Any:
    """`data_files` as texts, lists and dicts of Python."""
    if isinstance(files, Mapping):
        return {str(key): _plain(value) for key, value in files.items()}
    return [_plain(each) for each in files] if isinstance(files, list | tuple) else str(files)
