"""A run's claims, commits and job files, by name."""

import json
import time
import uuid

from planner.errors import StaleGeneration, StoreError
from planner.job import Job, digest, to_json
from planner.store.records import FileDigest, Manifest, RunIdentity, seal, unseal
from planner.store.storage import Storage


def commit_name(step: int, generation: int) -> str:
    """A commit's name; two generations never write the same one."""
    return f"{step:012d}-{generation:06d}"


class Run:
    """The run in one folder. Nothing is cached: another process may write at any time."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- identity

    def ensure_identity(self) -> RunIdentity:
        """The run's name for itself, made now if the folder is new."""
        fresh = RunIdentity(run_id=uuid.uuid4().hex, created_s=time.time())
        self.storage.create("run.json", seal(fresh))
        return self.identity()

    def identity(self) -> RunIdentity:
        """The run's name for itself.

        Raises:
            StoreError: there is no run here.
        """
        if not self.storage.exists("run.json"):
            raise StoreError(f"{self.storage.url}: no run here (no run.json); check the path")
        value: RunIdentity = unseal(self.storage.read("run.json"), RunIdentity, f"{self.storage.url}/run.json")
        return value

    # -- jobs

    def keep_job(self, job: Job) -> str:
        """Keep the job beside its run; its digest."""
        name = digest(job)
        self.storage.create(f"jobs/{name}.json", to_json(job).encode())
        return name

    def job(self, job_digest: str) -> Job:
        """A job that this run was made with.

        Raises:
            StoreError: it is gone, or was altered.
        """
        where = f"jobs/{job_digest}.json"
        try:
            job = Job.model_validate(json.loads(self.storage.read(where)))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{where}: torn or not a job") from error
        if digest(job) != job_digest:
            raise StoreError(f"{where}: altered since it was written (its digest does not match)")
        return job

    # -- generations

    def generations(self) -> list[int]:
        """Every generation claimed so far, ascending."""
        names = [name[:-5] for name in self.storage.names("generations") if name.endswith(".json")]
        return sorted(int(name) for name in names if name.isdecimal())

    def claim_generation(self, claim: dict[str, str]) -> int:
        """Take the next generation number; at most one caller gets each."""
        number = max(self.generations(), default=0) + 1
        while not self.storage.create(f"generations/{number:06d}.json", json.dumps(claim, sort_keys=True).encode()):
            number += 1
        return number

    def newest_claims(self, most: int) -> list[dict[str, str]]:
        """What the last generations said when they claimed their numbers, newest first.

        Raises:
            StoreError: a claim was torn or altered; it is named.
        """
        return [self._claim(number) for number in self.generations()[-most:][::-1]]

    def _claim(self, number: int) -> dict[str, str]:
        where = f"generations/{number:06d}.json"
        try:
            claim = json.loads(self.storage.read(where))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{where}: torn or not a claim") from error
        if not isinstance(claim, dict):
            raise StoreError(f"{where}: torn or not a claim")
        return claim

    def require_current(self, generation: int) -> None:
        """Check that nobody has claimed the run since.

        Raises:
            StaleGeneration: somebody has.
        """
        newest = max(self.generations(), default=generation)
        if newest > generation:
            raise StaleGeneration(
                f"{self.storage.url}: generation {newest} has taken this run over from generation {generation}; "
                "another driver is running it, and this one commits nothing more"
            )

    # -- commits

    def commits(self) -> list[str]:
        """Names of all commits, oldest first: by generation, then by step."""
        names = [name[:-5] for name in self.storage.names("manifests") if name.endswith(".json")]
        return sorted(names, key=lambda name: (name[13:], name[:12]))

    def manifest(self, name: str) -> Manifest:
        """One commit.

        Raises:
            StoreError: torn, altered, or of another run.
        """
        where = f"manifests/{name}.json"
        manifest: Manifest = unseal(self.storage.read(where), Manifest, where)
        if manifest.run_id != self.identity().run_id or manifest.name != name:
            raise StoreError(f"{where}: belongs to another run or another commit; it was copied here")
        return manifest

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
        """Remove the files of all commits but the newest `keep`, and what earlier generations left half-written.

        Manifests stay, for the audit.
        """
        kept = set(self.commits()[-keep:])
        for name in self.storage.names("checkpoints"):
            committed = self.storage.exists(f"manifests/{name}.json")
            left_over = not committed and name[13:] < f"{generation:06d}"
            if (committed and name not in kept) or left_over:
                self.storage.delete(f"checkpoints/{name}")
