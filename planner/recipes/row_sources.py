"""Where a recipe's rows are: a file or a folder on this machine, or a data set of the hub. Which code loads them.

Paths are relative to the folder that planner runs in, as `data.path` is.
"""

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from planner.base.disk import expanded, is_file, place_text
from planner.data.examples import BadRow
from planner.data.formats import Kind, format_of
from planner.data.row import row_of
from planner.data.row_files import reader_of
from planner.errors import PlannerError

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


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A data set that a recipe names."""

    name: str
    config: str | None = None
    split: str | None = None
    weight: Any = None
    """the share of its rows that is taken, None for all"""
    seed: int = 0
    """the seed of the shuffle before a share is taken"""
    hub: bool = True
    """whether `datasets.load_dataset` can load it by this name"""
    files: Any = None
    """`data_files` of `load_dataset`: a file, a list of files, or files by split"""
    folder: str | None = None
    """`data_dir` of `load_dataset`"""
    columns: tuple[str, ...] = ()
    """the columns that the recipe keeps, all if empty"""

    @property
    def wanted_split(self) -> str:
        """The split that the recipe trains on."""
        return self.split or "train"

    @property
    def is_whole(self) -> bool:
        """Whether the recipe trains on all rows of one split."""
        share = self.weight
        is_share = isinstance(share, int | float) and not isinstance(share, bool) and share < 1
        return not is_share and not _PART.search(self.wanted_split)


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is at the name of a data set."""

    load: str = ""
    """Python that loads its rows, empty if nothing that planner knows loads them"""
    joined: str = ""
    """the same rows with types that other data sets have, too, so that they can be joined"""
    path: str = ""
    """the `data.path` that planner reads without a conversion, empty if there is none"""
    split: str | None = None
    """the `data.split` beside it"""
    lack: str = ""
    """what the user must see to before, as a text for the to-do list"""


def place_of(source: DatasetSource, kind: Kind) -> Place:
    """Where the rows of a data set are, and what loads them. Only the first row of a file is read."""
    source = _direct(source)
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
    return _loaded(source, "load_dataset", _arguments(source))


def short_name(name: str) -> str:
    """The last part of a path or of a hub's name, without the end that says a file's form: `in/rows.csv` -> `rows`."""
    last = PurePath(name).name or name
    return last.split(".")[0] or last if _loader(name) else last


def _direct(source: DatasetSource) -> DatasetSource:
    """`load_dataset("json", data_files=FILE)` as the file itself."""
    files = source.files[0] if isinstance(source.files, list) and len(source.files) == 1 else source.files
    if source.name in _GENERIC and isinstance(files, str) and source.folder is None and not _is_glob(files):
        return replace(source, name=files, files=None, config=None, split=source.split)
    return source


def _is_glob(path: str) -> bool:
    return bool(set("*?[") & set(path)) or "://" in path


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


def _file(source: DatasetSource, kind: Kind) -> Place:
    """A file: planner reads it, or a loader of the datasets library does."""
    file = _of_loader(source)
    try:
        found = next(reader_of(expanded(source.name))(expanded(source.name)), None)
    except PlannerError:
        return file
    if found is None:
        return replace(file, path=source.name, lack=f"data.path: {source.name} has no rows. Write some into it")
    row = row_of(found, (0, 1))
    try:
        format_of(row.fields, kind).read(row.fields, kind)
        why = row.flaw
    except BadRow as error:
        why = row.flaw or str(error)
    lack = f"data.path: the first row of {source.name} cannot be used: {why}" if why else ""
    return replace(file, path=source.name if source.is_whole else "", lack=lack)


def _of_loader(source: DatasetSource) -> Place:
    """The code that loads a file by the end of its name. A file has one split, which is called train."""
    loader = _loader(source.name)
    if not loader:
        return Place()
    tabs = ", sep='\\t'" if PurePath(source.name).suffixes[-1:] == [".tsv"] else ""
    part = source.wanted_split[source.wanted_split.find("[") :] if "[" in source.wanted_split else ""
    file = str(expanded(source.name))
    return _loaded(source, "load_dataset", f"{loader!r}, data_files={file!r}{tabs}, split={'train' + part!r}")


def _folder(source: DatasetSource, folder: Path) -> Place:
    """A folder that `save_to_disk` wrote, with its splits in it or one in each folder, or a folder of other files."""
    wanted = source.wanted_split
    if _is_saved(folder):
        table = f"[{wanted!r}]" if is_file(folder / "dataset_dict.json") else ""
        place = _loaded(source, "load_from_disk", f"{str(folder)!r}", table)
        if _PART.search(wanted):
            lack = f"data.path: the recipe takes the split {wanted} of {source.name}. Save those rows alone"
            return Place(path=source.name, lack=lack)
        direct = Place(path=source.name, split=wanted if table and wanted != "train" else None)
        return replace(place, path=direct.path, split=direct.split) if source.is_whole else place
    if _is_saved(folder / wanted):
        place = _loaded(source, "load_from_disk", f"{str(folder / wanted)!r}")
        return replace(place, path=f"{source.name.rstrip('/')}/{wanted}") if source.is_whole else place
    return _loaded(source, "load_dataset", _arguments(replace(source, name=str(folder))))


def _is_saved(folder: Path) -> bool:
    names = ("dataset_info.json", "state.json")
    return is_file(folder / "dataset_dict.json") or all(is_file(folder / name) for name in names)


def _missing(source: DatasetSource) -> Place:
    """A pattern, or a path with nothing at it: `data.path` if planner would read it, other files need their loader."""
    is_there = any(glob.iglob(str(expanded(source.name)), recursive=True))  # noqa: PTH207  as data.path is read
    what = f"data.path: found nothing at {source.name}{place_text(source.name)}. Put the data there"
    lack = "" if is_there else what
    is_read = _loader(source.name) in {"json", "parquet"} and source.is_whole
    return replace(_of_loader(source), path=source.name if is_read else "", lack=lack)


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


def _loaded(source: DatasetSource, function: str, arguments: str, table: str = "") -> Place:
    """The code for a data set. The alignment-handbook shuffles before it takes a share."""
    load = f"{function}({arguments}){table}"
    if source.columns:
        load += f".select_columns({list(source.columns)!r})"
    share = source.weight
    if isinstance(share, int | float) and not isinstance(share, bool) and share < 1:
        load = f"(lambda d: d.shuffle(seed={source.seed}).select(range(int(len(d) * {share!r}))))({load})"
    # The loader of CSV makes another type of text.
    is_csv = arguments.startswith("'csv'")
    return Place(load=load, joined=f"Dataset.from_list({load}.to_list())" if is_csv else load)
