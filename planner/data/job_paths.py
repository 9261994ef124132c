"""Checks that what a job names by relative paths is there, and says where it is if it is beside the job file."""

import glob
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.base.disk import is_relative, place_text
from planner.data.hub_sets import is_hub_name
from planner.data.model_folder import CONFIG, cached_folder
from planner.data.paths import STDLIB
from planner.errors import DataError, UserError
from planner.job import HfModel, Job, RowsData, data_spec_of


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A relative path of a job."""

    key: str
    path: str
    what: str
    """what is expected there: a file, a folder"""
    fix: str

    def is_at(self, folder: Path) -> bool:
        """Whether there is something at the path, relative to a folder."""
        return is_there(self.path, folder)


def is_there(path: str, folder: Path) -> bool:
    """Whether there is something at a path or glob, relative to a folder."""
    try:
        place = folder / path
        return place.exists() or any(glob.iglob(str(place), recursive=True))  # noqa: PTH207  hidden files, as `data`
    except (OSError, ValueError):  # a name that is too long, or with a NUL. Opening it says so
        return True


def require_paths(job: Job, job_file: str = "", command: str = "") -> None:
    """Check that there is something at each relative path of a job. They start at the folder that planner runs in.

    Args:
        job: with the paths that the user wrote.
        job_file: its file. The error says if a path is right from its folder or the one above. Empty if there is none.
        command: the command of planner that the user gave with the file, such as `run`. Empty if there is none.

    Raises:
        DataError: there is nothing at a path.
    """
    beside = Path(job_file).parent if job_file else Path()
    for named in _named(job, beside):
        if named.is_at(Path()):
            continue
        fix = _way_there(named, beside, job_file, command) or named.fix
        raise DataError(f"{named.key}: no {named.what} at {named.path!r}{place_text(named.path)}. {fix}")


def data_paths(job: Job) -> Iterator[tuple[str, str]]:
    """The paths of a job's data and of `eval.data`, each with its key. Some may be names on the hub."""
    if not isinstance(job.data, RowsData):
        yield "data.path", job.data.path
        return
    for section, rows in (("data", job.data), ("eval.data", job.eval.data)):
        for number, each in enumerate(rows.sets if rows else ()):
            yield f"{section}.mixture[{number}].path" if rows and rows.mixture else f"{section}.path", each.path


def _way_there(named: _Named, beside: Path, job_file: str, command: str) -> str:
    """How to run planner in the folder of the job file, or in the one above. Empty if the path is right in neither."""
    above = beside.resolve().parent
    if named.is_at(beside):
        folder, there = beside, f"It is beside the job file in {beside}"
    elif job_file and (above / named.path).exists():
        folder, there = above, f"It is in {above}"
    else:
        return ""
    if not command:
        return f"{there}: run planner in that folder"
    name = Path(beside.resolve().name if folder == above else "", Path(job_file).name)
    return f"{there}: cd {shlex.quote(str(folder))} && planner {command} {shlex.quote(str(name))}"


def _named(job: Job, beside: Path) -> Iterator[_Named]:
    """The relative paths of a job. A model that may be a name on the hub is none, unless it is a folder `beside`."""
    what = "Python file" if job.is_own else "file"
    for key, path in data_paths(job):
        may_be_hubs = isinstance(job.data, RowsData) and is_hub_name(path) and not _is_near(path, beside)
        if path != STDLIB and is_relative(path) and not may_be_hubs:
            yield _Named(key=key, path=path, what=what, fix=data_spec_of(job.data).where)
    model = job.model
    if not isinstance(model, HfModel):
        return
    folders = {"model.path": model.path, "objective.reference_model": job.reference.model}
    for key, folder in folders.items():
        is_hubs = key == "model.path" and model.revision is not None  # a folder has no revision
        if not folder or not is_relative(folder):
            continue
        if _must_be_folder(folder) or (not is_hubs and _is_only_beside(folder, beside)):
            yield _Named(key=key, path=folder, what="folder", fix=f"Write the folder that has {CONFIG}")
    if model.chat_template and is_relative(model.chat_template):
        yield _Named(key="model.chat_template", path=model.chat_template, what="file", fix="Write a Jinja file")


def _is_near(path: str, beside: Path) -> bool:
    """Whether there is something at a path relative to the folder of the job file, or to the one above."""
    return is_there(path, beside) or is_there(path, beside.resolve().parent)


def _must_be_folder(path: str) -> bool:
    """Whether a model's path cannot be a name on the hub."""
    return path.startswith(".") or path.count("/") > 1


def _is_only_beside(path: str, beside: Path) -> bool:
    """Whether a model is a folder relative to `beside`, and not in the hub's cache."""
    if not (beside / path / CONFIG).is_file():
        return False
    try:
        return cached_folder(path) is None
    except UserError:
        return True
