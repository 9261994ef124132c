"""`planner.audit`: the audit of a run, including its tensors. `planner audit` shows the result."""

import os
from collections.abc import Mapping

from planner.provenance.audit import Audit
from planner.provenance.audit import audit as audit_run
from planner.runner.display import Progress
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def audit(url: str | os.PathLike[str], *, code: str = "", progress: Progress = lambda _done, _of: None) -> Audit:
    """Audit a run: compare what it did with what it should have done.

    Args:
        url: the run's folder or URL.
        code: the Python file with the `dataset()` of a run with your own training loop. The path in the ledger is
            never run.
        progress: called with `(done, of)` after each step.

    Raises:
        StoreError: there is no run, or no commit to audit.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and `code` names none.
    """
    return audit_run(RunFolder(Storage(os.fspath(url))), progress, _tensor_digests, code=code)


def _tensor_digests(storage: Storage, manifest: Manifest) -> Mapping[str, str]:
    """The digests of a commit's tensors."""
    from planner.train.checkpoints.checkpoint import read_digests  # torch, which only a certificate needs

    return read_digests(storage, manifest)
