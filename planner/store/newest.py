"""Finds the newest commit of a run. Only this module knows the three degrees of "newest".

named     a manifest has its name, and nothing is read: `newest_named`
readable  its manifest can be read, is of this run, and is the one that the ledger records: `newest_readable`
whole     it is readable, and its files match its manifest: `newest_of` with a `read` that also checks files

Files are many and large, so each caller checks them in its own way. Workers share them, a survey reads only names.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.errors import ManifestMismatch, NewerFormat, StoreError
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The result of a search for the newest commit."""

    manifest: Manifest | None
    """of the newest good commit, or None if no commit is good"""
    passed_over: tuple[tuple[str, StoreError], ...]
    """newer commits that are not good: name and reason, newest first"""


def newest_named(run: RunFolder) -> str:
    """The name of the newest commit, by file names alone. Empty if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    return next(reversed(run.commits()), "")


def newest_readable(run: RunFolder) -> Manifest | None:
    """The newest commit whose manifest can be read and matches the ledger. None if there are no manifests.

    Raises:
        NewerFormat: another version of planner wrote the manifest.
        ManifestMismatch: the manifest is not the one that the ledger records.
        StoreError: there are manifests, and none can be read.
    """
    newest = newest_of(reversed(run.commits()), lambda name: readable(run, name))
    if newest.manifest is None and newest.passed_over:
        raise newest.passed_over[0][1]
    return newest.manifest


def readable(run: RunFolder, name: str) -> Manifest:
    """The manifest of a commit, checked against the ledger.

    Raises:
        NewerFormat: another version of planner wrote the manifest.
        ManifestMismatch: the manifest is not the one that the ledger records.
        StoreError: the manifest cannot be read, or belongs to another run.
    """
    manifest = run.manifest(name)
    run.require_recorded(name)
    return manifest


def newest_of(names: Iterable[str], read: Callable[[str], Manifest]) -> Newest:
    """Find the first good commit of `names`.

    Args:
        names: commits, newest first.
        read: reads and checks one commit. It raises a StoreError if the commit is not good.

    Raises:
        NewerFormat: another version of planner wrote a commit. It may well be intact, so it is not passed over.
        ManifestMismatch: a manifest is not the one that the ledger records. Somebody replaced it, so it is not passed
            over.
    """
    passed_over: list[tuple[str, StoreError]] = []
    for name in names:
        try:
            return Newest(manifest=read(name), passed_over=tuple(passed_over))
        except (NewerFormat, ManifestMismatch):
            raise
        except StoreError as error:
            passed_over.append((name, error))
    return Newest(manifest=None, passed_over=tuple(passed_over))
