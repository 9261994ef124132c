"""The certificate of a finished `bitwise` run: the digest of every unsharded tensor, in its last commit's manifest.

No torch: the caller hands in a function that computes the digests from the files.
"""

from collections.abc import Callable, Mapping

from planner.errors import StoreError
from planner.provenance.lineage import Lineage
from planner.store.records import Manifest
from planner.store.storage import Storage

TensorDigests = Callable[[Storage, Manifest], Mapping[str, str]]
"""returns tensor name -> digest of the unsharded tensor, computed from a commit's files"""


def check_certificate(storage: Storage, lineage: Lineage, tensor_digests: TensorDigests | None) -> list[str]:
    """Check the newest commit's weights and certificate, and return what is wrong, one sentence each.

    Without `tensor_digests`, or if a file is not the manifest's, tensors are not read.
    """
    newest = lineage.newest
    findings = []
    if not newest.files:
        findings.append(f"commit {newest.name}: it names no files, so there are no weights")
    if _is_finished_bitwise(lineage) and not newest.tensors:
        findings.append(f"commit {newest.name}: a finished bitwise run has a certificate, and this one has none")
    if newest.tensors and tensor_digests is not None and lineage.has_files:
        findings += _check_tensors(storage, newest, tensor_digests)
    return findings


def _is_finished_bitwise(lineage: Lineage) -> bool:
    """Whether the last segment's header says so. A manifest could be altered to look unfinished."""
    if not lineage.segments:
        return False
    header = lineage.segments[-1].header
    return header.identity.equality == "bitwise" and lineage.newest.step == header.total_steps


def _check_tensors(storage: Storage, newest: Manifest, tensor_digests: TensorDigests) -> list[str]:
    """Compare the tensors in the files with the digests, which were taken from the tensors in memory."""
    findings = [] if newest.weights_digest else [f"commit {newest.name}: its certificate names no weights"]
    try:
        found = tensor_digests(storage, newest)
    except StoreError as error:
        return [*findings, f"commit {newest.name}: its tensors cannot be compared with its certificate: {error}"]
    differing = sorted(n for n in {*found, *newest.tensors} if found.get(n) != newest.tensors.get(n))
    if differing:
        findings.append(
            f"commit {newest.name}: {len(differing)} tensors are not those of its certificate, first {differing[0]}"
        )
    return findings
