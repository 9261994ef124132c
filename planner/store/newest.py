"""Which commit of a run is the newest. There are three degrees, and this is the one place that knows them.

named     a manifest bears its name; nothing is read: `newest_named`
readable  its manifest can be read, is of this run, and is the one that the ledger records: `newest_readable`
whole     it is readable and its files are what it names: `newest_of` with a `read` that checks the files, too

Files are many and large, so each caller checks them in its own way: workers share them, a survey looks at names alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.errors import NewerFormat, RecordMismatch, StoreError
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Newest:
    """What was found among some commits."""

    manifest: Manifest | None
    """of the newest commit that is good; none if no commit is"""
    passed_over: tuple[tuple[str, StoreError], ...]
    """newer commits that are not good: name and reason, newest first"""


def newest_named(run: RunFolder) -> str:
    """The name of the newest commit; empty if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    return next(reversed(run.commits()), "")


def newest_readable(run: RunFolder) -> Manifest | None:
    """The newest commit, by its manifest and the ledger's record of it; none if there are no manifests.

    Raises:
        NewerFormat: another version of planner wrote it.
        RecordMismatch: it is not the one that the ledger records.
        StoreError: there are manifests, and none can be read.
    """
    newest = newest_of(reversed(run.commits()), lambda name: readable(run, name))
    if newest.manifest is None and newest.passed_over:
        raise newest.passed_over[0][1]
    return newest.manifest


def readable(run: RunFolder, name: str) -> Manifest:
    """The manifest of a commit, checked against the ledger's record of it.

    Raises:
        NewerFormat: another version of planner wrote it.
        RecordMismatch: it is not the one that the ledger records.
        StoreError: it cannot be read, or belongs to another run.
    """
    manifest = run.manifest(name)
    run.require_recorded(name)
    return manifest


def newest_of(names: Iterable[str], read: Callable[[str], Manifest]) -> Newest:
    """The first commit of `names` that `read` returns; `read` raises a StoreError for a commit that is not good.

    Args:
        names: commits, newest first.
        read: reads and checks one commit.

    Raises:
        NewerFormat: a commit is of another version of planner. It may well be whole, so it is not passed over.
        RecordMismatch: a manifest is not the one that the ledger records. That is no accident: it is not passed over.
    """
    passed_over: list[tuple[str, StoreError]] = []
    for name in names:
        try:
            return Newest(manifest=read(name), passed_over=tuple(passed_over))
        except (NewerFormat, RecordMismatch):
            raise
        except StoreError as error:
            passed_over.append((name, error))
    return Newest(manifest=None, passed_over=tuple(passed_over))
