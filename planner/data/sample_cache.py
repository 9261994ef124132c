"""A cache of tokenized rows on this machine's disk: the first process tokenizes, later ones map its result.

It also keeps indexes of rows (`row_index`) and lengths of samples (`kept_lengths`). Each data set has a folder. Its
name is a digest of everything that the samples depend on: the files with their sizes and times, the job's settings, the
tokenizer, this code. The content is checked against its digest. If it is wrong, or the disk fails, rows are tokenized
again. `PLANNER_CACHE` names another place. The cache is private unless its folder already exists with other
permissions. Users who can write to it can replace samples.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from planner.base.disk import cache_folder
from planner.base.format_versions import STORED, refusal
from planner.base.json_text import read_json_object
from planner.base.permissions import make_folder, opener_within
from planner.base.wait_reports import WaitReports
from planner.data.base import SetRows
from planner.data.sample_sets import samples_digest
from planner.data.shared_array import SharedArray

_log = logging.getLogger(__name__)

# Smaller data is tokenized in a few seconds.
LEAST_BYTES = 16 * 2**20
# Of what describes the samples: names, digests, counts and notes.
_MAX_FACTS_BYTES = 2**24
SAMPLES, INDEXES, LENGTHS = "samples", "row-indexes", "row-lengths"
"""the folders of each in the cache"""
MOST_PIECES = 16
"""the most pieces in which the lengths of a set are kept"""
# Number of data sets that are kept: the last used ones. An index is small, and a mixture has one for each of its sets.
_MOST, _MOST_INDEXES = 8, 500
# Enough to tokenize gigabytes of text, and less than the timeout of a worker group's first step.
_LOCK_MOST_S = 1800.0
_LOCK_AGAIN_S = 0.2
_SAID_AFTER_S = 30.0
# A process that writes a file adds to it every few seconds.
_ABANDONED_S = 86_400.0


class KeptArrays(Protocol):
    """What the cache keeps: a data class of arrays and JSON values."""

    @property
    def arrays(self) -> dict[str, SharedArray]:
        """The arrays by their names."""
        ...


_Kept = TypeVar("_Kept", bound=KeptArrays)


def cached(
    facts: tuple[object, ...],
    num_bytes: int,
    make: Callable[[], _Kept],
    waits: Callable[[], None] = lambda: None,
    *,
    classes: Sequence[type[_Kept]],
    folder: str = SAMPLES,
) -> _Kept:
    """The cached samples, index or lengths, or the result of `make`, which is then cached.

    Args:
        facts: everything that the samples depend on, except this code.
        num_bytes: size of the source files. Small data is not cached.
        make: makes the samples. Its errors are not caught.
        waits: called repeatedly while another process makes these samples, to show that this process is alive.
        classes: those that `make` may return an object of.
        folder: `SAMPLES`, `INDEXES` or `LENGTHS`.
    """
    if num_bytes < LEAST_BYTES:
        return make()
    place = place_of(facts, folder)
    with locked(place, waits):
        return _load(place, classes) or _store(make(), place, classes)


def place_of(facts: tuple[object, ...], folder: str) -> Path:
    """The place in the cache of what these facts and this package's code decide."""
    return cache_folder() / folder / sha256(repr((_code_digest(), *facts)).encode()).hexdigest()


def _code_digest() -> str:
    """SHA-256 of this package's code, since a change of the code may change samples."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def locked(place: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let one process of this machine in at a time, if the disk supports locks.

    A process that hangs is waited for at most `_LOCK_MOST_S`: the lock saves work, and the cache is correct without it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            make_folder(place.parent, cache_folder())
            opener = opener_within(cache_folder())
            file = stack.enter_context(open(place.with_suffix(".lock"), "w", opener=opener))
            _lock(file, waits)
        yield


def _lock(file: IO[str], waits: Callable[[], None]) -> None:
    began_s, reports = time.monotonic(), WaitReports(_SAID_AFTER_S)
    while (waited_s := time.monotonic() - began_s) < _LOCK_MOST_S:
        with contextlib.suppress(BlockingIOError):
            # Not a lock that blocks: `waits` must be called meanwhile, and the wait has an end.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if reports.due(waited_s):
            _log.warning(
                "another process of this machine tokenizes the same rows (it holds %s): waiting for %.0f s so far. "
                "After %.0f s this process tokenizes them, too",
                file.name,
                waited_s,
                _LOCK_MOST_S,
            )
        waits()
        time.sleep(_LOCK_AGAIN_S)


def _load(place: Path, classes: Sequence[type[_Kept]]) -> _Kept | None:
    """The samples in a folder, None if they are missing or altered."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        facts = read_json_object(place / "set.json", _MAX_FACTS_BYTES)
        if why := refusal(facts.get("format"), "samples"):
            _log.warning("%s: %s, so rows are tokenized again", place / "set.json", why)
            return None
        if any(Path(name).name != name for name in facts["columns"]):
            return None
        arrays = {name: SharedArray.opened(str(place / name), dtype) for name, dtype in facts["columns"].items()}
        if samples_digest("kept", *arrays.values()) == facts["digest"]:
            # `forget_old` goes by this time.
            os.utime(place)
            fields: dict[str, Any] = {**facts["fields"], **arrays}
            if "notes" in fields:  # samples. Others have none
                fields["notes"] = tuple(fields["notes"])
                fields["sets"] = tuple(SetRows(*each) for each in fields["sets"])
            made = {each.__name__: each for each in classes}[facts["class"]]
            return made(**fields)
    return None


def _store(made: _Kept, place: Path, classes: Sequence[type[_Kept]]) -> _Kept:
    """Write the samples to `place`, and return them mapped from there. If the disk fails, return them from memory."""
    arrays = made.arrays
    facts = {
        "format": STORED["samples"],
        "class": type(made).__name__,
        "columns": {name: mapped.array.dtype.str for name, mapped in arrays.items()},
        "digest": samples_digest("kept", *arrays.values()),
        "fields": {name: value for name, value in vars(made).items() if name not in arrays},
    }
    part = place.with_name(f"part-{uuid.uuid4().hex}")
    try:
        make_folder(part, cache_folder())
        opener = opener_within(cache_folder())
        for name, mapped in arrays.items():
            with open(part / name, "wb", opener=opener) as stream:
                mapped.array.tofile(stream)
        with open(part / "set.json", "w", encoding="utf-8", opener=opener) as text:
            json.dump(facts, text)
        # A folder that is not empty cannot be renamed over.
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
        forget_old(place.parent)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        return made
    return _load(place, classes) or made


def forget_old(folder: Path) -> None:
    """Remove all but the last used data sets, and what killed processes left. Who maps one can continue to read it."""
    for part in folder.glob(".*"):
        if time.time() - part.stat().st_mtime > _ABANDONED_S:
            part.unlink(missing_ok=True)
    kept = (place for place in folder.iterdir() if not place.suffix and place.name[0] != ".")
    places = sorted(kept, key=lambda place: place.stat().st_mtime, reverse=True)
    most = {INDEXES: _MOST_INDEXES, LENGTHS: MOST_PIECES * _MOST_INDEXES}.get(folder.name, _MOST)
    for place in places[most:]:
        shutil.rmtree(place, ignore_errors=True)
        place.unlink(missing_ok=True)
        place.with_suffix(".lock").unlink(missing_ok=True)
