"""The audit of a run, with all that it can check."""

import os
from collections.abc import Mapping

from planner.provenance.audit import Audit
from planner.provenance.audit import audit as audit_run
from planner.runner.display import Progress
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def audit(url: str | os.PathLike[str], *, code: str = "", progress: Progress = lambda _done, _of: None) -> Audit:
    """What `planner audit` shows: what the run at a folder or URL did against what it should have done.

    `code` is the Python file with the `dataset()` of a run with a loop of your own; the path on record is never run.
    `progress(done, of)` is called after each step.

    Raises:
        StoreError: there is no run, or no commit to audit.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and none was named.
    """
    return audit_run(RunFolder(Storage(os.fspath(url))), progress, _tensor_digests, code=code)


def _tensor_digests(storage: Storage, manifest: Manifest) -> Mapping[str, str]:
    """Asked for only where there is a certificate: it needs torch."""
    from planner.train.checkpoints.checkpoint import read_digests

    return read_digests(storage, manifest)
