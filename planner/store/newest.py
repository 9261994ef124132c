"""Finds the newest commit of a run. Only this module knows the four degrees of "newest".

named     a manifest has its name, and nothing is read: `newest_named`
readable  its manifest can be read, is of this run, and is the one that the ledger records: `readable`
there     it is readable, and all its files are there with their sizes: `newest_commit`
whole     it is there, and its files match their digests: `newest_of` with a `read` that also checks them

A start, a dry run, `planner show`, `planner export` and the end of a run ask `newest_commit`. Files are many and large,
so only the workers, which share them, check digests before they resume.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from planner.errors import ManifestMismatch, NewerFormat, StoreError, Unreachable
from planner.events.resuming import CommitNotUsed
from planner.store.commit_names import commit_of, rank
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The result of a search for the newest commit."""

    manifest: Manifest | None
    """of the newest good commit, or None if no commit is good"""
    passed_over: tuple[tuple[str, StoreError], ...]
    """newer commits that are not good: name and reason, newest first"""
    lost: tuple[str, ...] = ()
    """newer commits that the ledger records and that have no manifest, oldest first"""

    @property
    def not_used(self) -> list[CommitNotUsed]:
        """One for each newer commit that is lost or not good: why, and how many steps are done again."""
        begin = self.manifest.step if self.manifest else 0
        reasons = (*((name, None) for name in self.lost), *((name, str(error)) for name, error in self.passed_over))
        return [
            CommitNotUsed(commit=name, reason=reason, resume_step=begin, again=max(commit_of(name)[0] - begin, 0))
            for name, reason in reasons
        ]


def newest_named(run: RunFolder) -> str:
    """The name of the newest commit, by file names alone. Empty if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    return next(reversed(run.commits()), "")


def newest_commit(run: RunFolder, recorded: Mapping[str, str] | None = None) -> Newest:
    """The newest commit that is there, and newer ones that are lost or not good. No manifest if the run has no commits.

    Args:
        run: the run's folder.
        recorded: commit name -> digest of its manifest, as far as the caller has read the ledger. None reads it.

    Raises:
        NewerFormat: another version of planner wrote a newer commit.
        ManifestMismatch: a newer manifest is not the one that the ledger records.
        Unreachable: a newer commit cannot be read now.
        StoreError: there are commits, and none is there, or run.json is gone or damaged.
    """
    names, lost = named_and_lost(run, recorded)
    run.require_identity_of(names)

    def read(name: str) -> Manifest:
        manifest = readable(run, name) if recorded is None else run.manifest(name)
        if recorded is not None:
            run.require_digest(name, recorded.get(name, ""))
        require_there(run.storage, manifest)
        return manifest

    newest = newest_of(names, read, lost)
    if newest.passed_over and newest_named(run) != names[0]:
        return newest_commit(run, recorded)  # the run goes on, and has removed the files of old commits meanwhile
    require_good(run, newest)
    return newest


def require_good(run: RunFolder, newest: Newest) -> None:
    """Check that a run with commits has a good one.

    Raises:
        StoreError: there are commits, and none is good.
    """
    if newest.manifest is None and newest.passed_over:
        name, error = newest.passed_over[0]
        raise StoreError(
            f"{run.storage.url}: none of {len(newest.passed_over)} commits is whole (commit {name} was passed over: "
            f"{error}). Restore the files, or start again with another checkpoint.path"
        )


def named_and_lost(run: RunFolder, recorded: Mapping[str, str] | None = None) -> tuple[list[str], list[str]]:
    """The names of all commits, newest first, and of newer ones that only the ledger has, oldest first.

    Args:
        run: the run's folder.
        recorded: the commits that the ledger records, as far as the caller has read it. None reads it.

    Raises:
        StoreError: the ledger records commits, but none is left. Starting again would silently lose their work.
    """
    names = run.commits()[::-1]
    after = names[0] if names else ""
    if recorded is None:
        lost = run.lost_commits(after)
    else:
        lost = sorted((name for name in recorded if name not in names and rank(name) > rank(after)), key=rank)
    if lost and not names:
        raise StoreError(
            f"{run.storage.url}: the ledger records {len(lost)} commits, the newest {lost[-1]}, and no manifest is "
            "left. Restore manifests/ or choose another checkpoint.path"
        )
    return names, lost


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


def newest_of(names: Iterable[str], read: Callable[[str], Manifest], lost: Iterable[str] = ()) -> Newest:
    """Find the first good commit of `names`.

    Args:
        names: commits, newest first.
        read: reads and checks one commit. It raises a StoreError if the commit is not good.
        lost: newer commits that only the ledger has.

    Raises:
        NewerFormat: another version of planner wrote a commit. It may well be intact, so it is not passed over.
        ManifestMismatch: a manifest is not the one that the ledger records. Somebody replaced it, so it is not passed
            over.
        Unreachable: a commit cannot be read now. It may well be intact, so it is not passed over.
    """
    passed_over: list[tuple[str, StoreError]] = []
    for name in names:
        try:
            return Newest(manifest=read(name), passed_over=tuple(passed_over), lost=tuple(lost))
        except (NewerFormat, ManifestMismatch):
            raise
        except Unreachable as error:
            raise Unreachable(
                f"{error}, and the commit of step {commit_of(name)[0]} may be whole. Make it readable, or move "
                f"manifests/{name}.json out of the run's folder to resume from the commit before"
            ) from error
        except StoreError as error:
            passed_over.append((name, error))
    return Newest(manifest=None, passed_over=tuple(passed_over), lost=tuple(lost))


def require_there(storage: Storage, manifest: Manifest) -> None:
    """Check that every file of a commit is there with its size. Workers and the audit check the contents.

    Raises:
        StoreError: a file is gone, or has another size.
    """
    there = storage.sizes_bytes(manifest.folder)
    for name, text in _wrong_sizes(manifest, there):
        raise StoreError(f"{manifest.folder}/{name}{text}")


def _wrong_sizes(manifest: Manifest, there: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for file in manifest.files:
        if file.name not in there:
            yield file.name, " is missing"
        elif there[file.name] != file.size_bytes:
            yield file.name, f": torn ({there[file.name]} bytes instead of {file.size_bytes})"
