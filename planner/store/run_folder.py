"""Reads and writes a run's folder: its name, its commits, and the steps that were only held."""

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from planner.base import progress_counter
from planner.errors import ManifestMismatch, StoreError
from planner.store.claims import Claims
from planner.store.commit_names import commit_name, commit_of, named, rank
from planner.store.jobs import Jobs, job_digest, job_file
from planner.store.ledger import recorded_commits
from planner.store.records import FileDigest, HeldManifest, Manifest, RunId, digest_of, seal, sealed_digest, unseal
from planner.store.storage import MAX_BLOB_BYTES, Storage

__all__ = ["RunFolder", "commit_name", "commit_of", "job_digest", "job_file", "no_run_error"]


def no_run_error(url: str) -> StoreError:
    """The error for a folder without a run."""
    if Path(url).is_file():
        own = next((folder for folder in list(Path(url).parents)[:2] if (folder / "run.json").is_file()), None)
        fix = (
            f"Write the folder of its run, {own}"
            if own
            else "Write the run's folder, which a job names as checkpoint.path"
        )
        return StoreError(f"{url}: no run here (this is a file). {fix}")
    return StoreError(
        f"{url}: no run here (no run.json). Check the path, or list the runs in a folder: planner runs FOLDER"
    )


class RunFolder(Jobs, Claims):
    """The run in one folder. Nothing is cached, because another process may write at any time."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- identity

    def ensure_identity(self) -> RunId:
        """The content of `run.json`, which is made now if the folder is new.

        Raises:
            StoreError: run.json is gone, and there are commits. A new name would not match them.
        """
        self.require_identity_of(self.commits())  # in this order, because a process makes run.json before it commits
        fresh = RunId(run_id=uuid.uuid4().hex, created_s=time.time())
        self.storage.create("run.json", seal(fresh))
        # Read again, since another driver may have been first.
        return self.identity()

    def require_identity_of(self, names: Sequence[str]) -> None:
        """Check that the run of these commits has its name.

        Raises:
            StoreError: there are commits, and run.json is gone, torn or altered.
        """
        if names and not self.storage.exists("run.json"):
            raise StoreError(
                f"{self.storage.url}: run.json is gone, and {len(names)} commits belong to the run that it named. "
                "Restore run.json, or choose another checkpoint.path"
            )
        if names:
            self.identity()

    def identity(self) -> RunId:
        """The content of `run.json`.

        Raises:
            StoreError: there is no run here.
        """
        if not self.storage.exists("run.json"):
            raise no_run_error(self.storage.url)
        return unseal(self.storage.read("run.json"), RunId, f"{self.storage.url}/run.json")

    # -- commits

    def commits(self) -> list[str]:
        """The names of all commits, by generation and then by step, oldest first. Other file names are ignored."""
        return named(self.storage.names("manifests"), ".json")

    def lost_commits(self, after: str = "") -> list[str]:
        """Commits newer than `after` (all, if `after` is empty) that are in the ledger and have no manifest.

        Raises:
            NewerFormat: another version of planner wrote the ledger.
        """
        there = set(self.commits())
        # A segment holds only commits of its own generation.
        segments = [number for number in self.segments() if f"{number:06d}" >= after[13:]]
        names = {name for number in segments for name in recorded_commits(self.storage, number)}
        return sorted((name for name in names - there if rank(name) > rank(after)), key=rank)

    def manifest(self, name: str) -> Manifest:
        """Read the manifest of a commit.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone, torn, altered, or of another run.
        """
        return self._described(name, "manifests", Manifest)

    def _described(self, name: str, folder: str, kind: type[Manifest]) -> Manifest:
        where = f"{folder}/{name}.json"
        # A held step names each worker's shards: 110 MB for 512 workers and 2,160 tensors.
        manifest = unseal(self.storage.read(where, MAX_BLOB_BYTES), kind, where)
        names = {name, commit_name(manifest.step, manifest.generation)}
        if manifest.run_id != self.identity().run_id or names != {manifest.name}:
            what = "step" if kind is HeldManifest else "commit"
            raise StoreError(f"{where}: belongs to another run or another {what}. It was copied here")
        if kind is Manifest and manifest.is_held:
            raise StoreError(f"{where}: it has shards of memory, which no commit has. It was altered")
        return manifest

    def manifest_digest(self, name: str) -> str:
        """The digest stored in a commit's manifest file. Only `manifest` checks whether it matches.

        Raises:
            StoreError: the manifest is gone or torn.
        """
        return self._stored_digest(f"manifests/{name}.json")

    def require_recorded(self, name: str) -> str:
        """Check that a commit's manifest is the one that the ledger records, and return its digest.

        A driver that was killed between writing the two has no record of its last commit. Then nothing is compared.

        Raises:
            ManifestMismatch: the ledger records another manifest.
            StoreError: the manifest or the ledger cannot be read.
        """
        return self.require_digest(name, recorded_commits(self.storage, commit_of(name)[1]).get(name, ""))

    def require_digest(self, name: str, recorded: str) -> str:
        """Check a commit's manifest against a recorded digest, and return its digest.

        An empty `recorded` is not compared.

        Raises:
            ManifestMismatch: the digests differ.
            StoreError: the manifest cannot be read.
        """
        found = self.manifest_digest(name)
        if recorded and found != recorded:
            raise ManifestMismatch(
                f"{self.storage.url}: manifests/{name}.json was replaced: its digest is {found[:16]}, and the ledger "
                f"records {recorded[:16]}. Restore it, or remove it to resume from the commit before, "
                "which audits then report"
            )
        return found

    def put_manifest(self, manifest: Manifest) -> None:
        """Write a commit's manifest, which makes the commit. All files that it names must be in the store.

        Raises:
            StaleGeneration: a newer generation has taken over the run.
        """
        self.require_current(manifest.generation)
        self.storage.write(f"manifests/{manifest.name}.json", seal(manifest))

    # -- steps that were held, resumed from, and perhaps never durable

    def held_steps(self) -> list[str]:
        """The names of all steps with a manifest in `held/`, by generation and then by step, oldest first."""
        return named(self.storage.names("held"), ".json")

    def is_held(self, name: str) -> bool:
        """Whether a generation resumed from this step's copies in memory."""
        return self.storage.exists(f"held/{name}.json")

    def held(self, name: str) -> Manifest:
        """Read the manifest of a step that a generation resumed from in memory.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone, torn, altered, or of another run.
        """
        return self._described(name, "held", HeldManifest)

    def held_digest(self, name: str) -> str:
        """The digest stored in a held step's manifest file. Only `held` checks whether it matches.

        Raises:
            StoreError: the manifest is gone or torn.
        """
        return self._stored_digest(f"held/{name}.json")

    def _stored_digest(self, where: str) -> str:
        return sealed_digest(self.storage.read(where, MAX_BLOB_BYTES), where)

    def put_held(self, manifest: Manifest, *, writer: int) -> str:
        """Write the manifest of a held step of an earlier generation, before the header that names it.

        If the step has one already, from a generation that resumed from the same copies, that one stays.

        Args:
            manifest: of the step, with `shards` and without `files`.
            writer: the generation that resumes from the step. It has claimed the run.

        Returns:
            The manifest's digest, which the header names.

        Raises:
            StaleGeneration: a newer generation has taken over the run.
            StoreError: the store cannot be used.
        """
        assert manifest.generation < writer, "a generation resumes from an earlier one"
        self.require_current(writer)
        held = HeldManifest.of(manifest)
        if self._is_kept(held):
            return self.held_digest(held.name)
        self.storage.write(f"held/{held.name}.json", seal(held))
        return digest_of(held)

    def _is_kept(self, held: HeldManifest) -> bool:
        try:
            before = self.held(held.name)
        except StoreError:
            return False
        return before == held.model_copy(update={"time_s": before.time_s, "versions": before.versions})

    # -- files

    def check_files(
        self, folder: str, files: tuple[FileDigest, ...], on_piece: Callable[[], None] = progress_counter.count_work
    ) -> None:
        """Check files of a commit by size and digest.

        Args:
            folder: where they are, `checkpoints/<commit>`.
            files: the files.
            on_piece: called after each piece that was read.

        Raises:
            StoreError: a file is missing, torn or altered. The message names it.
        """
        for file in files:
            name = f"{folder}/{file.name}"
            size_bytes = self.storage.size_bytes(name)
            if size_bytes < 0:
                raise StoreError(f"{name} is missing")
            if size_bytes != file.size_bytes:
                raise StoreError(f"{name}: torn ({size_bytes} bytes instead of {file.size_bytes})")
            if self.storage.sha256(name, on_piece) != file.sha256:
                raise StoreError(f"{name}: altered since it was written (its digest does not match)")

    def prune(self, keep: int, generation: int) -> None:
        """Remove the files of commits older than the newest `keep`, and unfinished files of earlier generations.

        Manifests stay, for the audit. The newest commit of `generation`, the caller's, always stays.
        """
        names = self.commits()
        outdated = set(names[: self._num_outdated(names, keep)])
        own = [name for name in names if int(name[13:]) == generation]
        outdated.difference_update(own[-1:])
        for name in self._checkpoints():
            # Unfinished files of this generation are being written now.
            left_over = name not in names and int(name[13:]) < generation and not self._is_recorded(name)
            if name in outdated or left_over:
                self.storage.delete(f"checkpoints/{name}")

    def _num_outdated(self, names: list[str], keep: int) -> int:
        """How many commits are older than the newest `keep` readable ones. A run cannot resume from others."""
        readable = (at for at in range(len(names) - 1, -1, -1) if self._is_readable(names[at]))
        return next(islice(readable, keep - 1, None), 0)

    def _is_readable(self, name: str) -> bool:
        try:
            self.manifest(name)
        except StoreError:
            return False
        return True

    def _is_recorded(self, name: str) -> bool:
        """Whether the ledger has this commit. Then its manifest was lost, and its files are kept for a restore."""
        return name in recorded_commits(self.storage, int(name[13:]))

    def _checkpoints(self) -> list[str]:
        return named(self.storage.names("checkpoints"))
