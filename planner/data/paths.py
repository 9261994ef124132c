"""`data.path` of a job -> a sorted list of files, their stamps, and a fingerprint of their content."""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from planner.base.disk import expanded, local_folder, open_regular, place_text
from planner.errors import DataError
from planner.job import HfModel, Model

STDLIB = "python-stdlib"
# Folders of the standard library that do not hold its source.
_NOT_SOURCE = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

Stamps = tuple[tuple[str, int, int], ...]
"""`(file, size in bytes, modification time in ns)` for each file"""
# Larger content is fingerprinted by evenly spaced blocks: reading 100 GB at each start would take minutes.
_READ_WHOLE_BYTES = 2**30
_CHUNK_BYTES = 2**22
_BLOCK_BYTES = 4096
_NUM_BLOCKS = 4096


def resolve(path: str) -> tuple[Path, list[Path]]:
    """The root folder of a path, and the files below it, sorted by their path relative to the root.

    Raises:
        DataError: there is nothing at the path, no file matches, or a folder cannot be read.
    """
    try:
        root, files = _find(path)
    except OSError as error:
        raise DataError.of("data.path", f"cannot use {path[:200]!r}: {error.strerror}") from error
    except ValueError as error:  # `**` beside other characters
        raise DataError.of("data.path", f"cannot use {path[:200]!r}: {error}") from error
    if not files and Path(path).exists() and not Path(path).is_dir():
        raise DataError.of("data.path", f"cannot read {path}: a pipe or a device, not a regular file")
    if not files:
        raise DataError.of(
            "data.path", f"no file at {path!r}{place_text(path)}. Write a file, a folder, a glob or {STDLIB}"
        )
    # A file system lists in any order, and rows are numbered in the order of their files.
    return root, sorted(files, key=lambda f: f.relative_to(root).as_posix())


def _find(path: str) -> tuple[Path, list[Path]]:
    if path == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = list(_library_source(root))
    elif Path(path).is_file():
        root, files = Path(path).parent, [Path(path)]
    elif Path(path).is_dir():
        root = Path(path)
        files = [f for f in root.rglob("*") if f.is_file()]
    else:
        root = _glob_root(path)
        pattern = str(Path(path).relative_to(root))
        files = [f for f in root.glob(pattern) if f.is_file()] if glob.has_magic(pattern) else []
    return root, files


def _library_source(root: Path) -> Iterator[Path]:
    """The source files of the standard library, without `site-packages`, which may hold a hundred times as many."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_SOURCE]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def absolute(path: str) -> str:
    """`path` made absolute, for a process with another working directory. `python-stdlib` stays unchanged."""
    return path if path == STDLIB else str(expanded(path).absolute())


def model_stamps(model: Model) -> Stamps:
    """Stamps of the files of a local model and of its chat template, since the tokenizer depends on them.

    Raises:
        DataError: a file cannot be read.
    """
    if not isinstance(model, HfModel):
        return ()
    template = expanded(model.chat_template) if model.chat_template else None
    sources = [local_folder(model.path), template if template and template.is_file() else None]
    return tuple(stamp for source in sources if source for stamp in source_stamps(str(source)))


def source_stamps(path: str) -> Stamps:
    """Stamps of every file that the path names: a cheap way to notice a change.

    Raises:
        DataError: there is no file, or one cannot be read.
    """
    _, files = resolve(path)
    return stamps_of_files(files)


def stamps_of_files(files: Iterable[Path]) -> Stamps:
    """Stamps of files.

    Raises:
        DataError: one cannot be read.
    """
    try:
        return tuple((str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files)
    except OSError as error:
        raise DataError.of("data.path", f"cannot read {error.filename}: {error.strerror}") from error


# More than any real row has. Parsed JSON takes up to twenty times its bytes.
MAX_LINE_BYTES = 2**25


def lines_of(file: Path, stream: BinaryIO) -> Iterator[bytes]:
    """The lines of an opened file, each with its line end.

    Raises:
        DataError: a line is longer than `MAX_LINE_BYTES`.
    """
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise DataError.of(
                "data.path", f"{file}: more than {MAX_LINE_BYTES} bytes on one line. Write one row per line"
            )
        yield line


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """The file, opened to read bytes.

    Raises:
        DataError: it cannot be opened, or a read in the `with` block fails.
    """
    try:
        with open_regular(file) as stream:
            yield stream
    except OSError as error:
        raise DataError.of("data.path", f"cannot read {file}: {error.strerror}") from error


def content_fingerprint(root: Path, files: list[Path], *facts: object) -> str:
    """SHA-256 over names, sizes, content and `facts`. Above 1 GiB, evenly spaced blocks stand for the content.

    Args:
        root: names are relative to this folder.
        files: the files in order.
        facts: the settings that cut the content into rows.

    Raises:
        DataError: a file cannot be read.
    """
    digest = hashlib.sha256(repr(facts).encode())
    try:
        total_bytes = sum(f.stat().st_size for f in files)
        for file in files:
            # File names on Linux are bytes, which need not be UTF-8.
            digest.update(os.fsencode(f"{file.relative_to(root).as_posix()} {file.stat().st_size}\n"))
        if total_bytes <= _READ_WHOLE_BYTES:
            for file in files:
                with opened(file) as stream:
                    while chunk := stream.read(_CHUNK_BYTES):
                        digest.update(chunk)
        else:
            _digest_blocks(digest, files, total_bytes)
    except OSError as error:
        raise DataError.of("data.path", f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def _digest_blocks(digest: "hashlib._Hash", files: list[Path], total_bytes: int) -> None:
    stride_bytes = max(total_bytes // _NUM_BLOCKS, _BLOCK_BYTES)
    for file in files:
        with opened(file) as stream:
            for start in range(0, file.stat().st_size, stride_bytes):
                stream.seek(start)
                digest.update(stream.read(_BLOCK_BYTES))


def _glob_root(pattern: str) -> Path:
    """The part of a pattern before its first wildcard."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
