"""What a submitted job takes along: this package, the job file, and the data that it names by a relative path.

Nothing else of the current folder is sent: no virtual environment, no runs, no caches, no secrets.
"""

import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.base.permissions import is_within
from planner.errors import UserError
from planner.job import HfModel, Job

# What Ray's dashboard takes in one request (DASHBOARD_CLIENT_MAX_SIZE in its ray_constants; a larger one was answered
# with HTTP 413 by Ray 2.60). That Ray's own store takes 512 MiB helps nobody who submits.
MAX_BYTES = 100 * 2**20
_NAMED = 3
"""of the largest files, in the error"""
# The same content makes the same archive, which Ray then does not send again.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """The files of a working directory on the cluster, by their names in it."""

    package: Mapping[str, Path]
    job: str
    """the job file's name, here and there"""
    data: tuple[str, ...]
    """names of the data files and of a local model's, here and there"""

    @property
    def files(self) -> Mapping[str, Path]:
        """Name there -> file here."""
        return {**{name: Path(name) for name in (self.job, *self.data)}, **self.package}

    @property
    def num_bytes(self) -> int:
        """Before compression."""
        return sum(file.stat().st_size for file in self.files.values())


def collect(job_file: str, job: Job) -> Shipment:
    """What the job needs from here. Relative paths are taken from the current folder, as `planner run` takes them.

    Raises:
        UserError: something lies where the cluster cannot be given it, or it is more than a request can hold.
        DataError: nothing is at a relative `data.path`.
    """
    shipment = Shipment(
        package=_package(),
        job=_inside("the job file", job_file),
        data=(*_data(job.data.path, is_code=job.is_own), *_model(job)),
    )
    if shipment.num_bytes > MAX_BYTES:
        raise UserError(_too_large(shipment))
    return shipment


def require_lasting(job: Job) -> None:
    """Check that the run's folder is not one that goes with the job.

    Raises:
        UserError: it is relative, and would lie in the working directory's copy on the head node.
    """
    if is_of_the_cluster(job.run_path):
        return
    raise UserError(
        f"checkpoint.path: {job.run_path} is relative, and would go with the job's temporary folder on the cluster; "
        f"name storage that all nodes see: --set checkpoint.path=/shared/{job.name}, or =s3://bucket/{job.name}"
    )


def is_of_the_cluster(path: str) -> bool:
    """Whether a job's path means the same wherever its driver runs: a URL, or from the root or the home folder."""
    return "://" in path or path.startswith(("/", "~"))


def write_archive(shipment: Shipment, archive: Path) -> None:
    """A zip file, equal to the bit for equal files."""
    with zipfile.ZipFile(archive, "w") as target:
        for name, file in sorted(shipment.files.items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with file.open("rb") as source, target.open(entry, "w") as copy:
                shutil.copyfileobj(source, copy)


def package_folder() -> Path:
    """Where the planner lies that runs here."""
    return Path(__file__).absolute().parents[1]


def _package() -> Mapping[str, Path]:
    root = package_folder()
    files = (file for file in root.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {f"{root.name}/{file.relative_to(root).as_posix()}": file for file in files}


def _data(path: str, *, is_code: bool) -> tuple[str, ...]:
    from planner.data.paths import STDLIB, resolve

    if path == STDLIB or is_of_the_cluster(path):
        return ()
    _, files = resolve(path)
    if is_code and [str(file) for file in files] != [path]:
        raise UserError(f"data.path: {path} is no Python file; a loop of your own is one file")
    return tuple(_inside("data.path", str(file)) for file in files)


def _model(job: Job) -> tuple[str, ...]:
    """The files of folders with models, and of a chat template, that the job names by relative paths."""
    if not isinstance(job.model, HfModel):
        return ()
    named = {"model.path": job.model.path, "objective.reference_model": getattr(job.objective, "reference_model", None)}
    folders = [(key, Path(path)) for key, path in named.items() if path and not is_of_the_cluster(path)]
    files = [(key, file) for key, folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    template = job.model.chat_template
    if template and not is_of_the_cluster(template):
        files.append(("model.chat_template", Path(template)))
        if not Path(template).is_file():
            raise UserError(f"model.chat_template: no file at {template}")
    return tuple(_inside(key, str(file)) for key, file in files)


def _inside(what: str, path: str) -> str:
    """The path from the current folder."""
    here = Path.cwd()
    place = Path(os.path.normpath(here / path))
    if not place.is_relative_to(here):
        raise UserError(f"{what}: {path} lies outside of {here}, from where all is sent; change to a folder above it")
    if not is_within(str(place), str(here)):
        raise UserError(f"{what}: {path} is a link that leads out of {here}, from where all is sent; send a copy")
    return place.relative_to(here).as_posix()


def _too_large(shipment: Shipment) -> str:
    sizes = sorted(((file.stat().st_size, name) for name, file in shipment.files.items()), reverse=True)[:_NAMED]
    largest = ", ".join(f"{name} ({mebibytes(size)})" for size, name in sizes)
    return (
        f"the job would take along {mebibytes(shipment.num_bytes)}, and Ray takes {mebibytes(MAX_BYTES)}; the largest: "
        f"{largest}; put what is large on storage that all nodes see, and write its absolute path into the job"
    )


def mebibytes(num_bytes: int) -> str:
    """A size for people."""
    return f"{num_bytes / 2**20:.1f} MiB"
