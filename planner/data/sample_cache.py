"""Tokenized rows kept on this machine's disk: the first process tokenizes, all others and later ones map what it made.

A folder for each data set, under a name made of everything that its samples depend on: the files with their sizes and
times, the job's settings, the tokenizer, this code. What is found there is held against its digest; whatever is wrong
with it, or with the disk, rows are tokenized anew. `PLANNER_CACHE` names another place. It is private, or as open as a
place of that name that is there already; who can write to it can put other samples there.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from planner.base.disk import expanded
from planner.base.format_versions import STORED, refusal
from planner.base.permissions import make_folder, opener_within
from planner.base.reminders import Reminders
from planner.data.columns import MappedArray
from planner.data.sample_sets import ChatSet, FeedbackSet, PackedSet, PairSet, SampleSet, samples_digest

_log = logging.getLogger(__name__)

# Less is tokenized in a few seconds.
LEAST_BYTES = 16 * 2**20
# Data sets that are kept: those used last.
_MOST = 8
# Gigabytes of text are tokenized in it; and it is less than a group of workers has for its first step.
_LOCK_MOST_S = 1800.0
_LOCK_AGAIN_S = 0.2
_SAID_AFTER_S = 30.0
_CLASSES = {made.__name__: made for made in (ChatSet, FeedbackSet, PackedSet, PairSet)}


def kept(
    facts: tuple[object, ...], num_bytes: int, make: Callable[[], SampleSet], waits: Callable[[], None] = lambda: None
) -> SampleSet:
    """What `make` makes of `num_bytes` of files, or made before of the same facts. What it raises is raised.

    `waits` is called now and then while another process makes the same: who watches this one sees that it lives.
    """
    if num_bytes < LEAST_BYTES:
        return make()
    place = _folder() / sha256(repr((_code_digest(), *facts)).encode()).hexdigest()
    with _locked(place, waits):
        return _load(place) or _store(make(), place)


def _home() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(os.environ.get("PLANNER_CACHE") or f"{home}/planner")


def _folder() -> Path:
    return _home() / "samples"


def _code_digest() -> str:
    """Another cut or another template of ours makes other samples, whether or not anybody thought of a version."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(place: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process of this machine at a time; on a disk that knows no locks, nobody waits.

    Nor for ever for a process that hangs: the lock saves work, and what is kept is right without it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            make_folder(place.parent, _home())
            opener = opener_within(_home())
            file = stack.enter_context(open(place.with_suffix(".lock"), "w", opener=opener))
            _lock(file, waits)
        yield


def _lock(file: IO[str], waits: Callable[[], None]) -> None:
    began_s, reminders = time.monotonic(), Reminders(_SAID_AFTER_S)
    while (waited_s := time.monotonic() - began_s) < _LOCK_MOST_S:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if reminders.due(waited_s):
            _log.warning(
                "another process of this machine tokenizes the same rows (it holds %s): waiting for %.0f s so far; "
                "after %.0f s they are tokenized here, too",
                file.name,
                waited_s,
                _LOCK_MOST_S,
            )
        waits()
        time.sleep(_LOCK_AGAIN_S)


def _load(place: Path) -> SampleSet | None:
    """None if it is not there, or not what was written."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        facts = json.loads((place / "set.json").read_text(encoding="utf-8"))
        if why := refusal(facts.get("format"), STORED["samples"]):
            _log.warning("%s: %s: rows are tokenized again", place / "set.json", why)
            return None
        if any(Path(name).name != name for name in facts["columns"]):
            return None
        columns = {name: MappedArray.opened(str(place / name), dtype) for name, dtype in facts["columns"].items()}
        if samples_digest("kept", *columns.values()) == facts["digest"]:
            os.utime(place)
            fields: dict[str, Any] = {**facts["fields"], **columns, "notes": tuple(facts["fields"]["notes"])}
            return _CLASSES[facts["class"]](**fields)
    return None


def _store(made: SampleSet, place: Path) -> SampleSet:
    """The same as it lies on the disk; what was in memory is given back."""
    columns = {name: value for name, value in vars(made).items() if isinstance(value, MappedArray)}
    facts = {
        "format": STORED["samples"],
        "class": type(made).__name__,
        "columns": {name: column.array.dtype.str for name, column in columns.items()},
        "digest": samples_digest("kept", *columns.values()),
        "fields": {name: value for name, value in vars(made).items() if name not in columns},
    }
    part = place.with_name(f"part-{uuid.uuid4().hex}")
    try:
        make_folder(part, _home())
        opener = opener_within(_home())
        for name, column in columns.items():
            with open(part / name, "wb", opener=opener) as stream:
                column.array.tofile(stream)
        with open(part / "set.json", "w", encoding="utf-8", opener=opener) as text:
            json.dump(facts, text)
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
        _forget_old(place.parent)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        return made
    return _load(place) or made


def _forget_old(folder: Path) -> None:
    """Who maps one of them goes on reading it."""
    places = sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
    for place in places[_MOST:]:
        shutil.rmtree(place, ignore_errors=True)
        place.with_suffix(".lock").unlink(missing_ok=True)
