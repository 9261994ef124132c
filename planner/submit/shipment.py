"""The files sent with a submitted job: this package, the job file, and data that it names by a relative path.

Nothing else in the current folder is sent: no virtual environment, no runs, no caches, no secrets.
"""

import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.base.disk import is_relative
from planner.base.permissions import is_within
from planner.data.hub_sets import is_hub_name
from planner.data.job_paths import data_paths, require_paths
from planner.data.paths import STDLIB, resolve
from planner.errors import UserError
from planner.job import HfModel, Job, RowsData
from planner.store.run_place import in_memory_text

# The largest request that Ray's dashboard accepts (DASHBOARD_CLIENT_MAX_SIZE in its ray_constants). Ray 2.60 answers a
# larger one with HTTP 413. Ray's own store accepts 512 MiB, but a submission goes through the dashboard.
MAX_BYTES = 100 * 2**20
_NAMED = 3
"""how many of the largest files the error names"""
# With a fixed time, equal files make an equal archive, which Ray does not upload again.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """The files of the job's working directory on the cluster."""

    package: Mapping[str, Path]
    job: str
    """the job file, relative to the current folder here and to the working directory there"""
    data: tuple[str, ...]
    """files of the data and of a local model, relative like `job`"""

    @property
    def files(self) -> Mapping[str, Path]:
        """Name on the cluster -> local file."""
        return {**{name: Path(name) for name in (self.job, *self.data)}, **self.package}

    @property
    def num_bytes(self) -> int:
        """Size of all files, uncompressed."""
        return sum(file.stat().st_size for file in self.files.values())


def collect(job_file: str, job: Job) -> Shipment:
    """The files that the job needs. Relative paths start at the current folder, as in `planner run`.

    Raises:
        UserError: a file is outside the current folder, or all files exceed `MAX_BYTES`.
        DataError: there is nothing at a relative `data.path`.
    """
    require_paths(job, job_file, "submit")
    shipment = Shipment(
        package=_package(),
        job=_inside("the job file", job_file),
        data=(*_data(job), *_model(job)),
    )
    if shipment.num_bytes > MAX_BYTES:
        raise UserError(_too_large(shipment))
    return shipment


def require_lasting(job: Job) -> None:
    """Check that the run's folder is not in the job's temporary working directory.

    Raises:
        UserError: `checkpoint.path` is relative, so the run would be lost with that directory, or it is in one
            process's memory. Or `after` is relative, and no run is sent.
    """
    if job.after is not None and is_relative(job.after.run):
        raise UserError(
            f"after: {job.after.run} is relative, and runs are not sent with a job. Put that run on storage that all "
            f"nodes see, and write its absolute path or URL: --set after.run=/shared/{Path(job.after.run).name}"
        )
    if refusal := in_memory_text(job.run_path):
        raise UserError(refusal)
    if not is_relative(job.run_path):
        return
    raise UserError(
        f"checkpoint.path: {job.run_path} is relative, so the run would be in the job's temporary folder. "
        f"Use storage that all nodes see: --set checkpoint.path=/shared/{job.name}, or =s3://bucket/{job.name}"
    )


def write_archive(shipment: Shipment, archive: Path) -> None:
    """Write a zip file. Equal files make identical bytes."""
    with zipfile.ZipFile(archive, "w") as target:
        for name, file in sorted(shipment.files.items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with file.open("rb") as source, target.open(entry, "w") as copy:
                shutil.copyfileobj(source, copy)


def package_folder() -> Path:
    """The folder of the planner package that runs here."""
    return Path(__file__).absolute().parents[1]


def _package() -> Mapping[str, Path]:
    root = package_folder()
    files = (file for file in root.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {f"{root.name}/{file.relative_to(root).as_posix()}": file for file in files}


def _data(job: Job) -> tuple[str, ...]:
    """The files of the data that the job names by relative paths."""
    found: dict[str, None] = {}
    for key, path in data_paths(job):
        if path == STDLIB or not is_relative(path) or (isinstance(job.data, RowsData) and is_hub_name(path)):
            continue
        _, files = resolve(path)
        if job.is_own and [str(file) for file in files] != [path]:
            raise UserError(f"{key}: {path} is not a Python file. Your own training loop must be one file")
        found.update(dict.fromkeys(_inside(key, str(file)) for file in files))
    return tuple(found)


def _model(job: Job) -> tuple[str, ...]:
    """The files of model folders and of a chat template that the job names by relative paths."""
    if not isinstance(job.model, HfModel):
        return ()
    named = {"model.path": job.model.path, "objective.reference_model": job.reference.model}
    folders = [(key, Path(path)) for key, path in named.items() if path and is_relative(path)]
    files = [(key, file) for key, folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    template = job.model.chat_template
    if template and is_relative(template):
        files.append(("model.chat_template", Path(template)))
    return tuple(_inside(key, str(file)) for key, file in files)


def _inside(what: str, path: str) -> str:
    """The path relative to the current folder. `what` names it in the error."""
    here = Path.cwd()
    place = Path(os.path.normpath(here / path))
    if not place.is_relative_to(here):
        raise UserError(f"{what}: {path} is outside {here}, and only files below it are sent. Change to a folder above")
    if not is_within(str(place), str(here)):
        raise UserError(f"{what}: {path} links out of {here}, and only files below it are sent. Replace it by a copy")
    return place.relative_to(here).as_posix()


def _too_large(shipment: Shipment) -> str:
    """The error for a shipment that exceeds `MAX_BYTES`, with its largest files."""
    sizes = sorted(((file.stat().st_size, name) for name, file in shipment.files.items()), reverse=True)[:_NAMED]
    largest = ", ".join(f"{name} ({mebibytes(size)})" for size, name in sizes)
    return (
        f"the job's files have {mebibytes(shipment.num_bytes)}, and Ray accepts {mebibytes(MAX_BYTES)} (the largest: "
        f"{largest}). Put large files on storage that all nodes see, and write their absolute path into the job"
    )


def mebibytes(num_bytes: int) -> str:
    """A size as text, in MiB."""
    return f"{num_bytes / 2**20:.1f} MiB"
