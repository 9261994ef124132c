"""Reads and writes a run's folder: its name, its jobs, its generations' claims and its commits."""

import contextlib
import json
import re
import time
import uuid
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice

from planner.base.format_versions import STORED
from planner.errors import ManifestMismatch, ObjectiveUnavailable, StaleGeneration, StoreError
from planner.job import Job
from planner.job.objective_registry import spec_of_kind
from planner.store.ledger import recorded_commits
from planner.store.records import (
    FileDigest,
    Manifest,
    RunId,
    canonical_json,
    require_format,
    seal,
    sealed_digest,
    unseal,
)
from planner.store.storage import Storage


def commit_name(step: int, generation: int) -> str:
    """The name of a commit, such as `000000000120-000003`. Two generations never write the same name."""
    return f"{step:012d}-{generation:06d}"


def commit_of(name: str) -> tuple[int, int]:
    """The step and the generation in a commit's name."""
    return int(name[:12]), int(name[13:])


def job_file(job: Job) -> bytes:
    """The content of `jobs/<digest>.json`: canonical JSON of the format number and the job's sections."""
    value = {"format": STORED["jobs"], **job.model_dump(mode="json", by_alias=True)}
    return canonical_json(value).encode()


def job_digest(job: Job) -> str:
    """SHA-256 of a job's `job_file`, which names the job within a run: 64 hex digits."""
    return sha256(job_file(job)).hexdigest()


_COMMIT_NAME = re.compile(r"[0-9]{12}-[0-9]{6}")
_MAX_GENERATION = 999_999


def _is_commit(name: str) -> bool:
    return _COMMIT_NAME.fullmatch(name) is not None


def _rank(name: str) -> tuple[str, str]:
    """The sort key of a commit's name: by generation, then by step."""
    return name[13:], name[:12]


def no_run_error(url: str) -> StoreError:
    """The error for a folder without a run."""
    return StoreError(
        f"{url}: no run here (no run.json). Check the path, or list the runs in a folder: planner runs FOLDER"
    )


class RunFolder:
    """The run in one folder. Nothing is cached, because another process may write at any time."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- identity

    def ensure_identity(self) -> RunId:
        """The content of `run.json`, which is made now if the folder is new.

        Raises:
            StoreError: run.json is gone, and there are commits. A new name would not match them.
        """
        # In this order, because a process makes run.json before it commits.
        if (names := self.commits()) and not self.storage.exists("run.json"):
            raise StoreError(
                f"{self.storage.url}: run.json is gone, and {len(names)} commits belong to the run that it named. "
                "Restore run.json, or choose another checkpoint.path"
            )
        fresh = RunId(run_id=uuid.uuid4().hex, created_s=time.time())
        self.storage.create("run.json", seal(fresh))
        return self.identity()

    def identity(self) -> RunId:
        """The content of `run.json`.

        Raises:
            StoreError: there is no run here.
        """
        if not self.storage.exists("run.json"):
            raise no_run_error(self.storage.url)
        value: RunId = unseal(self.storage.read("run.json"), RunId, f"{self.storage.url}/run.json")
        return value

    # -- jobs

    def keep_job(self, job: Job) -> str:
        """Store the job in the run's folder, and return its digest."""
        content, name = job_file(job), job_digest(job)
        where = f"jobs/{name}.json"
        # A file of this name holds this job, or it is torn.
        if not self.storage.create(where, content) and self.storage.sha256(where) != name:
            self.storage.write(where, content)
        return name

    def job(self, job_digest: str) -> Job:
        """Read a job that this run was made with.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: its file is gone or altered, or this version of planner cannot read such a job.
        """
        where = f"jobs/{job_digest}.json"
        content = self.storage.read(where)
        # The digest of the bytes and not of the job: a setting that planner added later must not change it.
        if sha256(content).hexdigest() != job_digest:
            raise StoreError(f"{where}: torn or altered since it was written (its digest does not match)")
        try:
            value = json.loads(content)
            require_format(value.pop("format", None), "jobs", where)
            return Job.model_validate(value)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{where}: not a job of this version of planner{_lack(content)}") from error

    def job_if_known(self, job_digest: str) -> Job | None:
        """Read a job that this run was made with. None if its file is gone.

        Raises:
            StoreError: its file was altered, or this version of planner cannot read such a job.
        """
        return self.job(job_digest) if self.storage.exists(f"jobs/{job_digest}.json") else None

    # -- generations

    def generations(self) -> list[int]:
        """The numbers of all claimed generations, ascending."""
        return self._numbers("generations", ".json")

    def segments(self) -> list[int]:
        """The numbers of all generations with a ledger segment, ascending."""
        return self._numbers("ledger", ".jsonl")

    def _numbers(self, folder: str, ending: str) -> list[int]:
        names = (name.removesuffix(ending) for name in self.storage.names(folder) if name.endswith(ending))
        return sorted(int(name) for name in names if re.fullmatch("[0-9]{6}", name))

    def newest_generation(self) -> int:
        """The highest generation number in any file name of the run's folder, or 0. Only names are read."""
        # A claim may be lost. Other files of its generation still have its number, which must not be taken again.
        named = [int(name[13:]) for name in (*self.commits(), *self._checkpoints())]
        return max((*self.generations(), *self.segments(), *named), default=0)

    def claim_generation(self, claim: dict[str, str]) -> int:
        """Take the next generation number. At most one caller gets each number.

        Raises:
            StoreError: no number is left.
        """
        content = json.dumps({"format": STORED["generations"], **claim}, sort_keys=True).encode()
        for number in range(self.newest_generation() + 1, _MAX_GENERATION + 1):
            if self.storage.create(f"generations/{number:06d}.json", content):
                return number
        raise StoreError(
            f"{self.storage.url}: generation {_MAX_GENERATION} is taken, and there is none after it. "
            "Remove files that were put there by hand, or choose another checkpoint.path"
        )

    def newest_claims(self, most: int) -> list[dict[str, str]]:
        """The claims of the last generations, newest first.

        A torn claim is left out. Its number stays taken.

        Raises:
            NewerFormat: another version of planner wrote a claim.
        """
        return list(islice(self._claims(), most))

    def _claims(self) -> Iterator[dict[str, str]]:
        for number in reversed(self.generations()):
            where = f"generations/{number:06d}.json"
            try:
                claim = json.loads(self.storage.read(where))
            except (StoreError, ValueError, RecursionError):
                continue
            if isinstance(claim, dict):
                require_format(claim.pop("format", None), "generations", where)
                yield claim

    def require_current(self, generation: int) -> None:
        """Check that no newer generation has claimed the run.

        Raises:
            StaleGeneration: a newer generation has claimed it.
        """
        newest = self.newest_generation()
        if newest > generation:
            raise StaleGeneration(
                f"{self.storage.url}: generation {newest} has taken over this run from generation {generation}. "
                "Another driver is running it, so this one commits nothing more"
            )

    # -- commits

    def commits(self) -> list[str]:
        """The names of all commits, by generation and then by step, oldest first. Other file names are ignored."""
        names = (name.removesuffix(".json") for name in self.storage.names("manifests") if name.endswith(".json"))
        return sorted(filter(_is_commit, names), key=_rank)

    def lost_commits(self, after: str = "") -> list[str]:
        """Commits newer than `after` (all, if `after` is empty) that are in the ledger and have no manifest.

        Raises:
            NewerFormat: another version of planner wrote the ledger.
        """
        there = set(self.commits())
        # A segment holds only commits of its own generation.
        segments = [number for number in self.segments() if f"{number:06d}" >= after[13:]]
        names = {name for number in segments for name in recorded_commits(self.storage, number)}
        return sorted((name for name in names - there if _rank(name) > _rank(after)), key=_rank)

    def manifest(self, name: str) -> Manifest:
        """Read the manifest of a commit.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone, torn, altered, or of another run.
        """
        where = f"manifests/{name}.json"
        manifest: Manifest = unseal(self.storage.read(where), Manifest, where)
        if manifest.run_id != self.identity().run_id or manifest.name != name:
            raise StoreError(f"{where}: belongs to another run or another commit. It was copied here")
        return manifest

    def manifest_digest(self, name: str) -> str:
        """The digest stored in a commit's manifest file. Only `manifest` checks whether it matches.

        Raises:
            StoreError: the manifest is gone or torn.
        """
        where = f"manifests/{name}.json"
        return sealed_digest(self.storage.read(where), where)

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
                f"records {recorded[:16]}. Restore it, or remove it to resume from the commit before"
            )
        return found

    def put_manifest(self, manifest: Manifest) -> None:
        """Write a commit's manifest, which makes the commit. All files that it names must be in the store.

        Raises:
            StaleGeneration: a newer generation has taken over the run.
        """
        self.require_current(manifest.generation)
        self.storage.write(f"manifests/{manifest.name}.json", seal(manifest))

    def check_files(self, manifest: Manifest, files: tuple[FileDigest, ...]) -> None:
        """Check some of a commit's files by size and digest.

        Raises:
            StoreError: a file is missing, torn or altered. The message names it.
        """
        for file in files:
            name = f"checkpoints/{manifest.name}/{file.name}"
            size_bytes = self.storage.size_bytes(name)
            if size_bytes < 0:
                raise StoreError(f"{name} is missing")
            if size_bytes != file.size_bytes:
                raise StoreError(f"{name}: torn ({size_bytes} bytes instead of {file.size_bytes})")
            if self.storage.sha256(name) != file.sha256:
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
        return [name for name in self.storage.names("checkpoints") if _is_commit(name)]


def _lack(content: bytes) -> str:
    """Why the objective of a job's file is not usable here. Empty if the objective is not the reason."""
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
        kind = json.loads(content)["objective"]["kind"]
        try:
            spec_of_kind(str(kind))
        except ObjectiveUnavailable as error:
            return f" as it is installed here: {error}"
    return ""
