"""The three verifiers of a run, asked in this process. `docs/verify_run.py` is loaded anew each time, by its path."""

import contextlib
import functools
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

from planner.errors import PlannerError
from planner.provenance.audit import audit
from planner.provenance.lineage import header_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_run.py"


@dataclass(frozen=True)
class Verdict:
    """Whether the verifier calls the run clean, and what it finds, one text each."""

    clean: bool
    found: tuple[str, ...]


@functools.cache
def _script_code():
    return compile(SCRIPT.read_text(), SCRIPT, "exec")


def load_script():
    """`docs/verify_run.py` as a new module, which remembers nothing of other runs."""
    module = ModuleType("verify_run")
    exec(_script_code(), module.__dict__)
    return module


def run_script(*words):
    """Exit code and output of `docs/verify_run.py` with these arguments."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        mock.patch.object(sys, "argv", [str(SCRIPT), *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            code = load_script().main()
        except SystemExit as end:  # argparse
            code = end.code
        out.flush()
    return code, out.buffer.getvalue().decode()


def audited(run):
    """The audit of a run's folder, without tensors. Relative paths of data begin beside the folder."""
    with contextlib.chdir(Path(run).parent):
        return audit(RunFolder(Storage(str(run))))


def by_audit(run, _original):
    """An audit that ends with an error has found something, too."""
    try:
        found = audited(run).findings
    except PlannerError as error:
        found = (str(error),)
    return Verdict(not found, found)


def by_script(run, _original):
    """What it finds begins with WRONG. Its last line is the verdict."""
    with contextlib.chdir(Path(run).parent):
        code, output = run_script(run)
    lines = output.splitlines()
    found = tuple(line for line in lines if line.startswith("WRONG "))
    last = "verify_run: NOT CLEAN" if found else "verify_run: clean. "
    assert code == (1 if found else 0), output
    assert lines[-1].startswith(last), output
    return Verdict(not found, found)


def by_verify(run, original):
    """`planner verify` trains two runs of a job and compares them. Here the second is `run`, the first `original`."""
    from planner.runner.verify_job import compare

    folder = RunFolder(Storage(str(original)))
    newest = folder.manifest(folder.commits()[-1])
    sizes = [header_of(folder, number).world_size for number in folder.segments()]
    try:
        checks = compare(folder.job(newest.job_digest), original, run, sizes)
    except PlannerError as error:
        return Verdict(clean=False, found=(str(error),))
    found = tuple(f"{check.what}: {check.detail}" for check in checks if not check.passed)
    return Verdict(not found, found)


VERIFIERS = {"audit": by_audit, "verify_run": by_script, "verify": by_verify}
"""Name -> `verifier(run, original)`. `run` is a run's folder, `original` that of the run that it was copied from."""
