"""What a run should have fed to the model, derived anew, against what its ledger says entered the forward pass.

`lineage` walks the committed records, `derived_steps` derives what they should be, `certificate` holds tensors against
their digests; here is the verdict. No torch, no Ray; it needs the run's folder and the data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.provenance.certificate import TensorDigests, check_certificate
from planner.provenance.derived_steps import derive
from planner.provenance.identity import recorded_plan
from planner.provenance.lineage import Segment, check_identity, check_records, count_discarded, read_lineage
from planner.store.run_folder import RunFolder

# A broken sampler breaks every step; the first few say what is wrong.
_MOST_FINDINGS = 20


@dataclass(frozen=True, kw_only=True)
class GenerationSteps:
    """Committed steps of one generation: one world size, one plan."""

    generation: int
    world_size: int
    shares: tuple[tuple[int, int], ...]
    accumulation_steps: int
    first_step: int
    end_step: int
    """half open: the first step that is not the phase's"""
    recomputed_before: int
    """steps done since the commit that it began from, and thrown away: it did them again"""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The verdict. Clean means: every committed step used exactly its samples and its learning rate, unaltered since.

    docs/security.md says what is taken on trust.
    """

    steps: int
    samples: int
    lost: int
    """positions of the order that no committed step computed, as far as counts show"""
    repeated: int
    """positions that committed steps computed more than once, as far as counts show"""
    mismatched: int
    """steps whose checksum is not that of the samples they should have used"""
    recomputed: int
    """steps done after a commit that a later generation went back to: work done again, counted once"""
    uncommitted: int
    """steps of the newest generation after its last commit; a crash now would do them again"""
    global_batches: tuple[int, ...]
    """every global batch in use along the lineage, in order; one entry if it never changed"""
    phases: tuple[GenerationSteps, ...]
    total_steps: int
    held_out: tuple[tuple[int, float], ...]
    """`(step, held-out loss)` along the lineage, ascending"""
    weights: str
    """one SHA-256 over the final weights, 64 hex digits; empty unless a `bitwise` run has finished"""
    findings: tuple[str, ...]
    """what is wrong, one sentence each; empty if clean"""

    @property
    def clean(self) -> bool:
        """Whether the run is what it claims to be."""
        return not self.findings


def audit(
    run: RunFolder,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    tensor_digests: TensorDigests | None = None,
    code: str = "",
) -> Audit:
    """Audit a run. `progress(done, of)` is called after each step.

    With `tensor_digests` (`planner.train.checkpoints.checkpoint.read_digests`; this room holds no tensor), the
    certificate of a finished `bitwise` run is held against the tensors in the checkpoint. `code` is the Python file
    with the `dataset()` of a run with a loop of the user's own; the path on record is never run.

    Raises:
        StoreError: there is no run, or no commit to audit.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and none was named.
    """
    run.identity()
    lineage = read_lineage(run)
    segments, newest = lineage.segments, lineage.newest
    derived = derive(run, segments, code, progress)
    findings = [*lineage.findings, *derived.findings, *check_identity(segments)]
    findings += check_records(run, findings)
    findings += check_certificate(run.storage, lineage, tensor_digests)
    discarded, uncommitted = count_discarded(run, segments)
    return Audit(
        steps=len(lineage.steps),
        samples=sum(step.samples for step in lineage.steps),
        lost=derived.lost,
        repeated=derived.repeated,
        mismatched=derived.mismatched,
        recomputed=sum(discarded.values()),
        uncommitted=uncommitted,
        global_batches=_global_batches(segments),
        phases=_phases(segments, discarded),
        total_steps=newest.total_steps,
        held_out=tuple(sorted({each.step: each.loss for each in lineage.evals}.items())),
        weights=newest.weights_digest,
        findings=_shortened(findings),
    )


def _global_batches(segments: Sequence[Segment]) -> tuple[int, ...]:
    batches = [segment.header.identity.global_batch for segment in segments]
    return tuple(b for i, b in enumerate(batches) if i == 0 or b != batches[i - 1])


def _phases(segments: Sequence[Segment], discarded: Mapping[int, int]) -> tuple[GenerationSteps, ...]:
    phases = []
    before = 0
    for segment in segments:
        header = segment.header
        plan = recorded_plan(header)
        phases.append(
            GenerationSteps(
                generation=header.generation,
                world_size=header.world_size,
                shares=plan.shares,
                accumulation_steps=plan.accumulation_steps,
                first_step=header.step,
                end_step=segment.end_step,
                recomputed_before=sum(n for g, n in discarded.items() if before <= g < header.generation),
            )
        )
        before = header.generation
    return tuple(phases)


def _shortened(findings: Sequence[str]) -> tuple[str, ...]:
    more = len(findings) - _MOST_FINDINGS
    return (*findings[:_MOST_FINDINGS], *([f"... and {more} more"] if more > 0 else []))
