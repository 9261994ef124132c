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
    findings += _check_presence(lineage)
    if newest.tensors and tensor_digests is not None and lineage.has_files:
        findings += _check_tensors(storage, newest, tensor_digests)
    return findings


def _check_presence(lineage: Lineage) -> list[str]:
    """Check that the last commits of finished `bitwise` parts have certificates, and that no other commit has one.

    By the headers: a manifest could be altered to look unfinished. A job may have been extended after it was finished.
    """
    findings = []
    for segment in lineage.segments:
        header = segment.header
        for commit in lineage.manifests.of_generation(header.generation):
            is_last = header.identity.equality == "bitwise" and commit.step == header.total_steps
            if commit.tensors and not is_last:
                findings.append(
                    f"{commit.title}: it has a certificate, and only the last commit of a bitwise run has one"
                )
            if is_last and not commit.tensors and not commit.is_held and segment.end_step == commit.step:
                findings.append(f"{commit.title}: a finished bitwise run has a certificate, and this one has none")
    return findings


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
