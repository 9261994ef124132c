"""The jobs that a run was made with, each in a file that its digest names."""

import contextlib
from hashlib import sha256
from typing import Any, Final

from planner.base.format_versions import STORED
from planner.base.json_text import NoJson, json_object
from planner.base.text import as_submitted
from planner.errors import DataKindUnavailable, ObjectiveUnavailable, StoreError, TrackerUnavailable
from planner.job import Job
from planner.job.data_registry import DATA_KINDS
from planner.job.objective_registry import OBJECTIVES
from planner.job.section import STORED_JOB
from planner.job.tracking import TRACKERS
from planner.store.records import canonical_json, require_format
from planner.store.storage import Storage


def job_values(job: Job, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """The job's sections as JSON values. The files of a submitted job have the paths by which they were sent.

    Another cluster unpacks them elsewhere, which changes nothing in the job.
    """
    values = job.model_dump(mode="json", by_alias=True, exclude_defaults=exclude_defaults)
    return {name: _as_submitted(value, _SENT[name]) if name in _SENT else value for name, value in values.items()}


# The sections that name files which are sent with a job, and what their relative paths begin with: the name of a
# model's folder alone could be a name on the hub.
_SENT: Final = {"data": "", "eval": "", "model": "./", "objective": "./"}


def _as_submitted(value: Any, beginning: str) -> Any:
    """A section with the paths by which its files were sent, those of sections and lists in it included."""
    if isinstance(value, dict):
        return {key: _as_submitted(item, beginning) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_submitted(item, beginning) for item in value]
    if not isinstance(value, str) or (text := as_submitted(value)) == value:
        return value
    return beginning + text


def job_file(job: Job) -> bytes:
    """The content of `jobs/<digest>.json`: canonical JSON of the format number and the job's sections."""
    return canonical_json({"format": STORED["jobs"], **job_values(job)}).encode()


def job_digest(job: Job) -> str:
    """SHA-256 of a job's `job_file`, which names the job within a run: 64 hex digits."""
    return sha256(job_file(job)).hexdigest()


class Jobs:
    """The part of a run's folder that holds jobs."""

    storage: Storage

    def keep_job(self, job: Job) -> str:
        """Store the job in the run's folder, and return its digest."""
        content, name = job_file(job), job_digest(job)
        where = f"jobs/{name}.json"
        # A file of this name holds this job, or it is torn.
        if not self.storage.create(where, content) and not self._is_kept_job(where, len(content), name):
            self.storage.write(where, content)
        return name

    def _is_kept_job(self, where: str, size_bytes: int, digest: str) -> bool:
        # The size first: a file that planner did not write may have no end.
        return self.storage.size_bytes(where) == size_bytes and self.storage.sha256(where) == digest

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
            value = json_object(content)
            require_format(value.pop("format", None), "jobs", where)
            return Job.model_validate(value, context=STORED_JOB)
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{where}: not a job of this version of planner{_lack(content)}") from error

    def job_if_known(self, job_digest: str) -> Job | None:
        """Read a job that this run was made with. None if its file is gone.

        Raises:
            StoreError: its file was altered, or this version of planner cannot read such a job.
        """
        return self.job(job_digest) if self.storage.exists(f"jobs/{job_digest}.json") else None


def _lack(content: bytes) -> str:
    """Why the objective, the kind of data or a tracker of a job's file is not usable here. Empty if all are."""
    with contextlib.suppress(LookupError, TypeError, NoJson):
        value = json_object(content)
        try:
            OBJECTIVES.spec_of_kind(str(value["objective"]["kind"]))
            DATA_KINDS.spec_of_kind(str(value["data"]["kind"]))
            for section in value.get("tracking", ()):
                TRACKERS.spec_of_kind(str(section["kind"]))
        except (DataKindUnavailable, ObjectiveUnavailable, TrackerUnavailable) as error:
            return f" as it is installed here: {error}"
    return ""
