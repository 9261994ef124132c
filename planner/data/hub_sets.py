"""Data sets of the Hugging Face hub, by name or as a folder with the hub's layout, read by the datasets library.

Its files of rows become Arrow files in the library's cache. A name needs the network once, then the cache is enough
(`HF_HUB_OFFLINE=1` uses nothing else).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, is_relative
from planner.base.text import how_to_install
from planner.errors import DataError, shortened
from planner.job import MixtureSet, RowSource

# `owner/name`, as the hub allows them.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_FILES = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst")
_COMMIT = re.compile("[0-9a-f]{40}")
_HUB_TIMEOUT_S = 10.0
_MOST_REASON = 300
_ONLY_FAILED = "An error occurred while generating the dataset"


def is_hub_name(path: str) -> bool:
    """Whether a path can only be a data set on the hub: nothing is there, and it has the form `owner/name`."""
    is_name = bool(_NAME.fullmatch(path)) and is_relative(path) and not path.lower().endswith(_FILES)
    try:
        return is_name and not expanded(path).exists()
    except OSError:
        return False


def names_commit(source: RowSource) -> bool:
    """Whether the source names a commit, whose content never changes."""
    return bool(_COMMIT.fullmatch(source.revision or ""))


def with_commit(source: MixtureSet) -> MixtureSet:
    """The source with the commit that its revision is now, so that all workers and later generations read the same.

    Unchanged if it is no name on the hub, if it names a commit, or if the hub cannot be asked.
    """
    if not is_hub_name(source.path) or names_commit(source):
        return source
    try:
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(source.path, revision=source.revision, timeout=_HUB_TIMEOUT_S).sha
    except Exception:  # noqa: BLE001  errors of the hub's client and of httpx. Loading the rows reports them
        return source
    return source.model_copy(update={"revision": commit}) if commit else source


def load_set(source: RowSource) -> Any:
    """The `Dataset`, or the `DatasetDict` if the job names no split.

    Raises:
        DataError: there is no such data set, configuration or split, or the hub cannot be reached.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError.of(
            "data.path",
            f"{source.path} is a data set of the hub, but datasets is not installed: {how_to_install('hf')}",
        ) from error
    is_hubs = is_hub_name(source.path)
    _require_within(source)
    path = source.path if is_hubs else str(expanded(source.path).absolute())
    try:
        with quiet(datasets), _cache_only(datasets) if is_hubs and _is_out_of_reach(source) else nullcontext():
            loaded = datasets.load_dataset(
                path, source.config, data_dir=source.folder, split=source.split, revision=source.revision
            )
            is_cached = is_hubs and datasets.config.HF_HUB_OFFLINE
    except Exception as error:  # errors of the library, of the hub's client, of pyarrow, or OSError
        raise _not_loaded(source, error) from error
    if is_cached and names_commit(source):
        _require_commit(source, loaded)
    return loaded


def _require_within(source: RowSource) -> None:
    """Check that a folder of files has no revision, and that `folder` is below `path`.

    Raises:
        DataError: the library would ignore the revision, or read files elsewhere, whose changes planner would not see.
    """
    if source.revision is not None and not is_hub_name(source.path):
        raise DataError.of(
            "data.revision", f"{source.path} is here, and only a data set of the hub has a revision. Leave it out"
        )
    if source.folder is not None and (not is_relative(source.folder) or ".." in Path(source.folder).parts):
        raise DataError.of(
            "data.folder", f"{source.folder} is not a folder below {source.path}. Write one, or another data.path"
        )


def _require_commit(source: RowSource, loaded: Any) -> None:
    """Check which commit the cache had. Without a network, the library takes any commit that is there.

    Raises:
        DataError: it is another one.
    """
    files = cached_files(loaded)
    if any(source.revision not in file.parts for file in files):
        raise DataError.of(
            "data.revision",
            f"{source.path}: the cache has another commit than {source.revision}, and the hub cannot be reached "
            f"({files[0].parent}). Download that commit where there is a network, or write the one that is there",
        )


def cached_files(loaded: Any) -> tuple[Path, ...]:
    """The Arrow files of a loaded data set. Their names contain the commit that they were made from."""
    tables = loaded.values() if isinstance(loaded, dict) else [loaded]
    return tuple(sorted({Path(file["filename"]) for table in tables for file in table.cache_files}))


@contextmanager
def quiet(datasets: Any) -> Iterator[None]:
    """Without the library's progress bars, which would cross planner's."""
    is_shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if is_shown:
            datasets.enable_progress_bars()


@contextmanager
def _cache_only(datasets: Any) -> Iterator[None]:
    """As with `HF_DATASETS_OFFLINE=1`. Without it, the library tries for half a minute to reach the hub."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _is_out_of_reach(source: RowSource) -> bool:
    """Whether the hub does not answer. One that refuses is within reach."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        HfApi().dataset_info(source.path, revision=source.revision, timeout=_HUB_TIMEOUT_S)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        return False  # the library meets the same error, and says more about it
    except Exception:  # noqa: BLE001  errors of the network, whose classes depend on the client's version
        return True
    return False


def _not_loaded(source: RowSource, error: Exception) -> DataError:
    reason = _reason(error)
    if is_hub_name(source.path):
        return DataError.of(
            "data.path",
            f"no file or folder at {source.path!r}, and no such data set in the hub's cache or on the hub ({reason}). "
            "Write a file, a folder or a glob, or download the data set where there is a network",
        )
    lines = str(error).splitlines()
    if configs := next((line.partition("configs: ")[2] for line in lines if "available configs: [" in line), ""):
        # The library's first line says only that a configuration is missing.
        return DataError.of("data.config", f"{source.name} has several. Write one of {configs.strip('[]')}")
    is_plain = not (source.config or source.folder or source.split)
    fix = f". For files in it, write a glob such as {source.path}/*.jsonl" * is_plain
    return DataError.of("data.path", f"cannot load {source.name}: {reason}{fix}")


def _reason(error: Exception) -> str:
    """What the library says, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0] == _ONLY_FAILED:
        # What failed is on the lines after it, or in the error's cause.
        lines = lines[1:2] or str(error.__cause__ or lines[0]).splitlines()
        lines = [" ".join(line.strip() for line in lines)]
    return shortened(lines[0] if lines else type(error).__name__, _MOST_REASON).rstrip(".")
