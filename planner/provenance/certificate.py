"""The certificate of a finished `bitwise` run: the digest of every whole tensor, in the manifest of its last commit.

No torch: who can read tensors hands in a function that takes their digests from the files.
"""

from collections.abc import Callable, Mapping

from planner.errors import StoreError
from planner.provenance.lineage import Lineage
from planner.store.records import Manifest
from planner.store.storage import Storage

TensorDigests = Callable[[Storage, Manifest], Mapping[str, str]]
"""name -> digest of every whole tensor of a commit, taken from its files"""


def check_certificate(storage: Storage, lineage: Lineage, tensor_digests: TensorDigests | None) -> list[str]:
    """Check that the newest commit has weights and, where it must, a certificate, and that its tensors are those of it.

    Without `tensor_digests`, tensors are not read.
    """
    newest = lineage.newest
    findings = []
    if not newest.files:
        findings.append(f"commit {newest.name}: it names no files, so there are no weights")
    if _is_finished_bitwise(lineage) and not newest.tensors:
        findings.append(f"commit {newest.name}: a finished bitwise run has a certificate, and this one has none")
    if newest.tensors and tensor_digests is not None:
        findings += _check_tensors(storage, newest, tensor_digests)
    return findings


def _is_finished_bitwise(lineage: Lineage) -> bool:
    """By the header of the last segment: a manifest could be altered to look unfinished."""
    if not lineage.segments:
        return False
    header = lineage.segments[-1].header
    return header.identity.equality == "bitwise" and lineage.newest.step == header.total_steps


def _check_tensors(storage: Storage, newest: Manifest, tensor_digests: TensorDigests) -> list[str]:
    """The digests were taken from the tensors in memory: the files must hold the very same ones."""
    findings = [] if newest.weights_digest else [f"commit {newest.name}: its certificate names no weights"]
    try:
        found = tensor_digests(storage, newest)
    except StoreError as error:
        return [*findings, f"commit {newest.name}: its tensors cannot be held against its certificate: {error}"]
    differing = sorted(n for n in {*found, *newest.tensors} if found.get(n) != newest.tensors.get(n))
    if differing:
        findings.append(
            f"commit {newest.name}: {len(differing)} tensors are not those of its certificate, first {differing[0]}"
        )
    return findings
