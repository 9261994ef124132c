"""What stands where a job file belongs, if it is something else that planner knows, and what takes it."""

import shlex
from pathlib import Path

from planner.base.disk import read_bounded
from planner.errors import JobError, printable
from planner.files.known_files import known_binary, known_file
from planner.files.loader import MAX_BYTES
from planner.files.messages import Mistake, job_error
from planner.recipes import looks_like


def not_a_job(path: str) -> JobError | None:
    """The error for a path that names no job, in one line. None if it may be a job with mistakes, or is unknown."""
    try:
        text = _of_folder(Path(path)) if Path(path).is_dir() else _of_file(path)
    except (OSError, ValueError):  # what cannot be read has its own error
        return None
    return job_error(path, [Mistake(text=text)]) if text else None


def _of_folder(folder: Path) -> str:
    if (folder / "run.json").is_file():
        jobs = sorted(folder.glob("jobs/*.json"))
        its = f" Its job is {printable(str(jobs[0]))}" if len(jobs) == 1 else " Its jobs are in jobs/"
        where = shlex.quote(printable(str(folder)))
        return f"found the folder of a run, not a job. To see the run: planner show {where}.{its}"
    if (folder / "config.json").is_file():
        return "found the folder of a model, not a job. A job names it as model.path"
    return ""


def _of_file(path: str) -> str:
    data = read_bounded(path, MAX_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        found = known_binary(data)
        return found.instead_of("a job") if found else ""
    if recipe := looks_like(path):
        return recipe
    known = known_file(path, text)
    return known.instead_of("a job") if known else ""
