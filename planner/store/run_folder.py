"""A run's claims, commits and job files, by name."""

import contextlib
import json
import re
import time
import uuid
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice

from planner.base.format_versions import STORED
from planner.errors import ObjectiveError, RecordMismatch, StaleGeneration, StoreError
from planner.job import Job
from planner.job.objective_registry import spec_of_kind
from planner.store.ledger import recorded_commits
from planner.store.records import (
    FileDigest,
    Manifest,
    RunName,
    canonical_json,
    require_format,
    seal,
    sealed_digest,
    unseal,
)
from planner.store.storage import Storage


def commit_name(step: int, generation: int) -> str:
    """A commit's name; two generations never write the same one."""
    return f"{step:012d}-{generation:06d}"


def commit_of(name: str) -> tuple[int, int]:
    """The step and the generation that a commit's name says."""
    return int(name[:12]), int(name[13:])


def job_file(job: Job) -> bytes:
    """What `jobs/<digest>.json` holds: canonical JSON, with the format beside the job's sections."""
    value = {"format": STORED["jobs"], **job.model_dump(mode="json", by_alias=True)}
    return canonical_json(value).encode()


def job_digest(job: Job) -> str:
    """SHA-256 of that file, by which a run names the job: 64 hex digits."""
    return sha256(job_file(job)).hexdigest()


_COMMIT_NAME = re.compile(r"[0-9]{12}-[0-9]{6}")
_MAX_GENERATION = 999_999


def _is_commit(name: str) -> bool:
    return _COMMIT_NAME.fullmatch(name) is not None


def _rank(name: str) -> tuple[str, str]:
    """Sorts names of commits by generation, then by step: a later generation went on from where it says."""
    return name[13:], name[:12]


class RunFolder:
    """The run in one folder. Nothing is cached: another process may write at any time."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- identity

    def ensure_identity(self) -> RunName:
        """The run's name for itself, made now if the folder is new.

        Raises:
            StoreError: the name is gone, though the run has commits; under a new one they would be foreign.
        """
        # In this order: who commits has made run.json before.
        if (names := self.commits()) and not self.storage.exists("run.json"):
            raise StoreError(
                f"{self.storage.url}: run.json is gone, and {len(names)} commits belong to the run that it named; "
                "restore run.json, or choose another checkpoint.path"
            )
        fresh = RunName(run_id=uuid.uuid4().hex, created_s=time.time())
        self.storage.create("run.json", seal(fresh))
        return self.identity()

    def identity(self) -> RunName:
        """The run's name for itself.

        Raises:
            StoreError: there is no run here.
        """
        if not self.storage.exists("run.json"):
            raise StoreError(f"{self.storage.url}: no run here (no run.json); check the path")
        value: RunName = unseal(self.storage.read("run.json"), RunName, f"{self.storage.url}/run.json")
        return value

    # -- jobs

    def keep_job(self, job: Job) -> str:
        """Keep the job beside its run; its digest."""
        content, name = job_file(job), job_digest(job)
        where = f"jobs/{name}.json"
        # What is there under this name is this job, or it is torn.
        if not self.storage.create(where, content) and self.storage.sha256(where) != name:
            self.storage.write(where, content)
        return name

    def job(self, job_digest: str) -> Job:
        """A job that this run was made with.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone, or was altered, or this version of planner does not know such a job.
        """
        where = f"jobs/{job_digest}.json"
        content = self.storage.read(where)
        # Of the bytes, not of the job: a setting that came later, with a default, alters nothing.
        if sha256(content).hexdigest() != job_digest:
            raise StoreError(f"{where}: torn or altered since it was written (its digest does not match)")
        try:
            value = json.loads(content)
            require_format(value.pop("format", None), "jobs", where)
            return Job.model_validate(value)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{where}: not a job of this version of planner{_lack(content)}") from error

    def job_if_known(self, job_digest: str) -> Job | None:
        """A job that this run was made with; none if its file is gone.

        Raises:
            StoreError: it was altered, or this version of planner does not know such a job.
        """
        return self.job(job_digest) if self.storage.exists(f"jobs/{job_digest}.json") else None

    # -- generations

    def generations(self) -> list[int]:
        """Every generation claimed so far, ascending."""
        return self._numbers("generations", ".json")

    def segments(self) -> list[int]:
        """Every generation that has a segment of the ledger, ascending."""
        return self._numbers("ledger", ".jsonl")

    def _numbers(self, folder: str, ending: str) -> list[int]:
        names = (name.removesuffix(ending) for name in self.storage.names(folder) if name.endswith(ending))
        return sorted(int(name) for name in names if re.fullmatch("[0-9]{6}", name))

    def newest_generation(self) -> int:
        """The highest number that anything in the run's folder bears; 0 if nothing does. Only names are read."""
        # A claim may be lost. What its generation wrote still bears its number, and nobody may take that again.
        named = [int(name[13:]) for name in (*self.commits(), *self._checkpoints())]
        return max((*self.generations(), *self.segments(), *named), default=0)

    def claim_generation(self, claim: dict[str, str]) -> int:
        """Take the next generation number; at most one caller gets each.

        Raises:
            StoreError: there is no number left.
        """
        content = json.dumps({"format": STORED["generations"], **claim}, sort_keys=True).encode()
        for number in range(self.newest_generation() + 1, _MAX_GENERATION + 1):
            if self.storage.create(f"generations/{number:06d}.json", content):
                return number
        raise StoreError(
            f"{self.storage.url}: generation {_MAX_GENERATION} is taken, and there is none after it; "
            "remove what was put there by hand, or choose another checkpoint.path"
        )

    def newest_claims(self, most: int) -> list[dict[str, str]]:
        """What the last generations said when they claimed their numbers, newest first.

        A torn claim is left out: its number is taken all the same, and a run is never lost for it.

        Raises:
            NewerFormat: another version of planner made one.
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
        """Check that nobody has claimed the run since.

        Raises:
            StaleGeneration: somebody has.
        """
        newest = self.newest_generation()
        if newest > generation:
            raise StaleGeneration(
                f"{self.storage.url}: generation {newest} has taken this run over from generation {generation}; "
                "another driver is running it, and this one commits nothing more"
            )

    # -- commits

    def commits(self) -> list[str]:
        """Names of all commits, oldest first: by generation, then by step. A name of another form is none."""
        names = (name.removesuffix(".json") for name in self.storage.names("manifests") if name.endswith(".json"))
        return sorted(filter(_is_commit, names), key=_rank)

    def lost_commits(self, after: str = "") -> list[str]:
        """Commits newer than `after` (all, if that is empty) that the ledger records and no manifest names.

        Raises:
            NewerFormat: another version of planner wrote the ledger.
        """
        there = set(self.commits())
        # A segment holds only commits of its own generation.
        segments = [number for number in self.segments() if f"{number:06d}" >= after[13:]]
        names = {name for number in segments for name in recorded_commits(self.storage, number)}
        return sorted((name for name in names - there if _rank(name) > _rank(after)), key=_rank)

    def manifest(self, name: str) -> Manifest:
        """One commit.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: torn, altered, or of another run.
        """
        where = f"manifests/{name}.json"
        manifest: Manifest = unseal(self.storage.read(where), Manifest, where)
        if manifest.run_id != self.identity().run_id or manifest.name != name:
            raise StoreError(f"{where}: belongs to another run or another commit; it was copied here")
        return manifest

    def manifest_digest(self, name: str) -> str:
        """The digest stored beside a commit's manifest. `manifest` checks whether it matches.

        Raises:
            StoreError: the manifest is gone or torn.
        """
        where = f"manifests/{name}.json"
        return sealed_digest(self.storage.read(where), where)

    def require_recorded(self, name: str) -> str:
        """Check that a commit's manifest is the one that the ledger records, and return its digest.

        A driver that was killed between the two has left no record of its last commit. Then nothing is compared.

        Raises:
            RecordMismatch: it is another one.
            StoreError: the manifest or the ledger cannot be read.
        """
        return self.require_digest(name, recorded_commits(self.storage, commit_of(name)[1]).get(name, ""))

    def require_digest(self, name: str, recorded: str) -> str:
        """Check a commit's manifest against a recorded digest, and return its digest. An empty one is not compared.

        Raises:
            RecordMismatch: it is another one.
            StoreError: the manifest cannot be read.
        """
        found = self.manifest_digest(name)
        if recorded and found != recorded:
            raise RecordMismatch(
                f"{self.storage.url}: manifests/{name}.json is not the one that the ledger records (its digest is "
                f"{found[:16]}, on record is {recorded[:16]}): somebody replaced it; restore it, or remove it to go on "
                "from the commit before"
            )
        return found

    def put_manifest(self, manifest: Manifest) -> None:
        """The commit itself: everything it names must be in the store by now.

        Raises:
            StaleGeneration: a newer generation has taken the run over.
        """
        self.require_current(manifest.generation)
        self.storage.write(f"manifests/{manifest.name}.json", seal(manifest))

    def check_files(self, manifest: Manifest, files: tuple[FileDigest, ...]) -> None:
        """Check some of a commit's files by size and digest.

        Raises:
            StoreError: one is missing, torn or altered; it is named.
        """
        for file in files:
            name = f"checkpoints/{manifest.name}/{file.name}"
            size_bytes = self.storage.size_bytes(name)
            if size_bytes < 0:
                raise StoreError(f"{name}: gone")
            if size_bytes != file.size_bytes:
                raise StoreError(f"{name}: torn ({size_bytes} bytes instead of {file.size_bytes})")
            if self.storage.sha256(name) != file.sha256:
                raise StoreError(f"{name}: altered since it was written (its digest does not match)")

    def prune(self, keep: int, generation: int) -> None:
        """Remove the files of commits older than the newest `keep`, and what earlier generations left half-written.

        Manifests stay, for the audit. The newest commit of `generation`, which prunes, stays whatever is newer.
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
        """How many of the commits are older than the newest `keep` that can be read; nobody can go on from others."""
        readable = (at for at in range(len(names) - 1, -1, -1) if self._is_readable(names[at]))
        return next(islice(readable, keep - 1, None), 0)

    def _is_readable(self, name: str) -> bool:
        try:
            self.manifest(name)
        except StoreError:
            return False
        return True

    def _is_recorded(self, name: str) -> bool:
        """Whether the ledger has this commit: then its manifest was lost, may be restored, and needs its files."""
        return name in recorded_commits(self.storage, int(name[13:]))

    def _checkpoints(self) -> list[str]:
        return [name for name in self.storage.names("checkpoints") if _is_commit(name)]


def _lack(content: bytes) -> str:
    """Why nobody here can use the objective of a job's file, where that is all; else empty."""
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
        kind = json.loads(content)["objective"]["kind"]
        try:
            spec_of_kind(str(kind))
        except ObjectiveError as error:
            return f" as it is installed here: {error}"
    return ""
